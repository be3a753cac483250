"""Explains why workers failed: takes their exits, and gives the root cause and a report."""
