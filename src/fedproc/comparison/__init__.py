"""Methods and variants side by side over several seeds."""
