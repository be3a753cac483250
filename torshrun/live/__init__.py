"""What others can see of a running job: events, metrics, the status line."""

from torshrun.live.events import JsonLines, Recorder, StdoutLines, open_sink
from torshrun.live.metrics import MetricsServer
from torshrun.live.snapshot import JobState, Snapshot
from torshrun.live.statusline import StatusLine

__all__ = [
    "JobState",
    "JsonLines",
    "MetricsServer",
    "Recorder",
    "Snapshot",
    "StatusLine",
    "StdoutLines",
    "open_sink",
]
