"""Shows others what a running job does: events, metrics, the status line."""
