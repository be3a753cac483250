"""Why workers failed: exits in, root cause and a report for people out."""

from torshrun.failure.report import (
    Exit,
    describe,
    how,
    read_account,
    root_cause,
    signal_name,
)

__all__ = ["Exit", "describe", "how", "read_account", "root_cause", "signal_name"]
