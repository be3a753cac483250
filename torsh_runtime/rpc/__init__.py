"""Calls between workers, and weights that one of them publishes for others."""
