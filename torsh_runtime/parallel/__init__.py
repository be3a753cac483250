"""Training of one model by several ranks."""
