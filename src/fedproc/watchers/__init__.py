"""Observers of runs, besides the display of the command line."""
