"""The workers' output on its way to the agent's own: prefixed, kept, filtered, and never torn."""

from torshrun.workers.logs.prefix import check_template, is_coloured
from torshrun.workers.logs.pump import LogPump, Outlets
from torshrun.workers.logs.routes import keeps, needs_folder
from torshrun.workers.logs.stream import TAIL_BYTES, Stream, Tail

__all__ = [
    "TAIL_BYTES",
    "LogPump",
    "Outlets",
    "Stream",
    "Tail",
    "check_template",
    "is_coloured",
    "keeps",
    "needs_folder",
]
