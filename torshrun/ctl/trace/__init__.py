"""Implements torshctl trace, which writes the timeline of a job for Perfetto."""
