"""Why workers failed: exits in, root cause and a report for people out.

What is about failures loads when there is one: at the start it would cost a twentieth of the time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torshrun.failure.exits import Exit, OomEvidence, how
from torshrun.failure.memory import MemoryWatch
from torshrun.signals import signal_name

if TYPE_CHECKING:
    from torshrun.failure.cause import Kind, explain, fingerprint, followed, kind, root_cause
    from torshrun.failure.error_file import load_account, read_account, write_account
    from torshrun.failure.report import describe

__all__ = [
    "Exit",
    "Kind",
    "MemoryWatch",
    "OomEvidence",
    "describe",
    "explain",
    "fingerprint",
    "followed",
    "how",
    "kind",
    "load_account",
    "read_account",
    "root_cause",
    "signal_name",
    "write_account",
]


def __getattr__(name: str) -> Any:
    for module in ("cause", "error_file", "report") if name in __all__ else ():
        found = getattr(import_module(f"{__name__}.{module}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
