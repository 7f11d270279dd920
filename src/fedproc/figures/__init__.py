"""Curves, and the style that all figures share."""
