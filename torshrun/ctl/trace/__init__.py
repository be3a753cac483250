"""torshctl trace: the timeline of a job, for Perfetto."""
