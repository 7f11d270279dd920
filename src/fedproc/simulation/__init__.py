"""Many round loops driven with many sites over one pool of lanes."""
