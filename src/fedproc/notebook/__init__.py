"""What `import fedproc` offers to notebooks and scripts: run, compare, and what came out of it (docs/notebooks.md)."""
