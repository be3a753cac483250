"""Pipeline parallelism: ranks have different stages of a model, and schedules are data."""
