"""Measures the network between nodes, from one doctor to others that serve."""
