"""Whether workers still make progress: what they note, what is seen of them, and the verdict.

The names load lazily: few jobs need the report.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torshrun.health.detector import Hang, HangDetector, RankState, Sample
    from torshrun.health.pages import Collective, StatusPages, WorkerStatus
    from torshrun.health.report import describe, summary
    from torshrun.health.stacks import Stacks, collect
    from torshrun.health.watch import HangWatch, Watched

_HOMES = {
    "detector": ("Hang", "HangDetector", "RankState", "Sample"),
    "pages": ("Collective", "StatusPages", "WorkerStatus"),
    "report": ("describe", "summary"),
    "stacks": ("Stacks", "collect"),
    "watch": ("HangWatch", "Watched"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Collective",
    "Hang",
    "HangDetector",
    "HangWatch",
    "RankState",
    "Sample",
    "Stacks",
    "StatusPages",
    "Watched",
    "WorkerStatus",
    "collect",
    "describe",
    "summary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value
