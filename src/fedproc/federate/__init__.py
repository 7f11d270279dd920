"""A federation over the network: one round loop on a server, sites on other machines, NVIDIA FLARE in between."""
