"""Differential privacy of clients: each sends one clipped vector, and the sum of the vectors has noise on it."""
