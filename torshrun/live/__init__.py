"""What others can see of a running job: events, metrics, the status line."""
