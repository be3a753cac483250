"""Calls of collectives and messages, logged with their place in the program."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

LOGGER = "torsh_runtime.communication"
_OURS = str(Path(__file__).parents[1]) + os.sep
_PYTHONS = str(Path(os.__file__).parent) + os.sep
_PACKAGES = (f"{_PYTHONS}site-packages{os.sep}", f"{_PYTHONS}dist-packages{os.sep}")
Tell = Callable[[str, Sequence[object], int], None]
"""A function that is called before each call begins, with its name, its arrays and reduction, and
the size of the group."""


class Observed(Protocol):
    """A group that reports its calls."""

    def show_calls(self) -> None:
        """Look again for the function to report calls to."""


class Calls:
    """Holds the function that observes the calls of this process's groups."""

    def __init__(self) -> None:
        self._groups: WeakSet[Observed] = WeakSet()
        self._tell: Tell | None = None
        self._lock = threading.Lock()

    def add(self, group: Observed) -> None:
        """Add a group."""
        with self._lock:
            self._groups.add(group)

    @property
    def tell(self) -> Tell | None:
        """Return the function to report all calls to, or None."""
        return self._tell

    def look(self, tell: Tell | None) -> None:
        """Report all calls to `tell` from now on, or to nobody if it is None."""
        with self._lock:
            self._tell, groups = tell, list(self._groups)
        for group in groups:
            group.show_calls()


@cache
def own_calls() -> Calls:
    """Return the calls of this process."""
    return Calls()


class CallLog:
    """Logs all calls until it is stopped."""

    def __init__(self, rank: int) -> None:
        self._log = logging.getLogger(LOGGER)
        self._level = self._log.level
        self._handler: logging.Handler | None = None
        if self._log.level == logging.NOTSET:
            self._log.setLevel(logging.INFO)
        if not self._log.hasHandlers():
            self._handler = logging.StreamHandler()
            self._handler.setFormatter(logging.Formatter(f"rank {rank}: %(message)s"))
            self._log.addHandler(self._handler)
        own_calls().look(self._note)

    def _note(self, operation: str, given: Sequence[object], ranks: int) -> None:
        text = ", ".join(filter(None, map(_spelt, given)))
        self._log.info("%s(%s) of %d ranks at %s", operation, text, ranks, _place())

    def stop(self) -> None:
        """Stop logging."""
        own_calls().look(None)
        self._log.setLevel(self._level)
        if self._handler is not None:
            self._log.removeHandler(self._handler)


def _place() -> str:
    """Return the place of the program in this thread: the innermost call that is not this
    library's, torch's or Python's own."""
    frame, torch = sys._getframe(2), sys.modules.get("torch")
    others = (_OURS, "<frozen", *(torch.__path__ if torch is not None else ()))
    while frame.f_back is not None and _is_in(frame.f_code.co_filename, others):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


def _is_in(file: str, others: tuple[str, ...]) -> bool:
    if file.startswith(_PYTHONS) and not file.startswith(_PACKAGES):
        return True
    return file.startswith(others)


def _spelt(argument: Any) -> str:
    """Return a short text for an array, a list of arrays or a ReduceOp, and "" for any other
    argument."""
    if isinstance(argument, list | tuple) and argument and hasattr(argument[0], "dtype"):
        return f"{len(argument)} arrays, {_spelt(argument[0])}"
    if hasattr(argument, "dtype") and hasattr(argument, "shape"):
        return f"{str(argument.dtype).removeprefix('torch.')}{list(argument.shape)}"
    return getattr(argument, "name", "") if type(argument).__name__ == "ReduceOp" else ""
