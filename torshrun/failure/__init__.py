"""Why workers failed: exits in, root cause and a report for people out.

The names load lazily: a job in which nothing fails has no use for most of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torshrun.failure.account import load_account, read_account, write_account
    from torshrun.failure.cause import Kind, explain, fingerprint, followed, kind, root_cause
    from torshrun.failure.exits import Exit, OomEvidence, how, signal_name
    from torshrun.failure.memory import MemoryWatch
    from torshrun.failure.report import describe

_HOMES = {
    "account": ("load_account", "read_account", "write_account"),
    "cause": ("Kind", "explain", "fingerprint", "followed", "kind", "root_cause"),
    "exits": ("Exit", "OomEvidence", "how", "signal_name"),
    "memory": ("MemoryWatch",),
    "report": ("describe",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

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
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    return value
