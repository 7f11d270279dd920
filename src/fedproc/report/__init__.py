"""Results as people would rather see them: tables and pictures."""
