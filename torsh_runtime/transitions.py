"""Writes a line to stderr for each change of a state machine's state, if TORSH_LOG requests it.

    2026-11-28T05:00:02.123Z DEBUG torsh.agent: running -> stopping (failure; round 0, node 0)

Without the variable nothing is written, and logging is not even imported, since that would slow
down every worker's start. The agent and its workers read the same variable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torsh_runtime.errors import ConfigError

if TYPE_CHECKING:
    import logging

VARIABLE = "TORSH_LOG"
LEVELS = ("debug", "info", "warning", "error", "critical")
"""Values of the variable. So far all lines are of the first level."""
_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"

_logger: logging.Logger | None = None
_is_begun = _is_worker = False


def level_of(environ: Mapping[str, str]) -> str:
    """Return the level that the variable requests; "" if it is unset or empty.

    Raises ConfigError for any word that is no level.
    """
    level = environ.get(VARIABLE, "")
    if level and level.lower() not in LEVELS:
        listed = f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}"
        raise ConfigError(f"{VARIABLE}={level[:100]} is no level: give {listed}, or unset it")
    return level.lower()


def begin(write: Callable[[str], None] | None = None) -> None:
    """Read the variable, and apply it from now on.

    An agent passes `write`, which is called with each line; a worker's lines go to stderr. Raises
    ConfigError if the variable names no level.
    """
    global _logger, _is_begun, _is_worker
    level = level_of(os.environ)
    _logger = _make_logger(level.upper(), write) if level else None
    _is_begun, _is_worker = True, write is None


def is_on() -> bool:
    """Return whether changes are written. Raises ConfigError if the variable names no level."""
    if not _is_begun:
        begin()
    return _logger is not None


def note(machine: str, old: str, new: str, why: str = "", **place: object) -> None:
    """Write that the machine has changed from state `old` to `new`, if changes are written.

    `place` says where, in the given order; a worker's round and rank are added.
    """
    if not is_on() or _logger is None:
        return
    where = ", ".join(f"{name} {value}" for name, value in _placed(place) if value != "")
    said = "; ".join(filter(None, (why, where)))
    change = f"{old} -> {new} ({said})" if said else f"{old} -> {new}"
    _logger.getChild(machine).debug("%s", change.replace("\n", " "))


class Machine:
    """Keeps the state of a state machine, so that its users only report the new states."""

    __slots__ = ("_name", "state")

    def __init__(self, name: str, state: str) -> None:
        self._name = name
        self.state = state

    def become(self, state: str, why: str = "", **place: object) -> None:
        """Set the state, and note the change if it is a different one."""
        old, self.state = self.state, state
        if old != state:
            note(self._name, old, state, why, **place)

    @contextmanager
    def during(self, state: str, then: str, why: str = "", **place: object) -> Iterator[None]:
        """Set the state to `state` within the with statement, and to `then` afterwards.

        If the body raises, the state becomes "failed"."""
        self.become(state, why, **place)
        try:
            yield
        except BaseException as error:
            self.become("failed", f"{type(error).__name__}: {error}" if is_on() else "", **place)
            raise
        self.become(then, why, **place)


def _placed(place: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the place, and for a worker the round and the rank that the agent has given it."""
    yield from place.items()
    if _is_worker:
        yield "round", os.environ.get("TORSH_ROUND", "")
        yield "rank", os.environ.get("RANK", "")


def _make_logger(level: str, write: Callable[[str], None] | None) -> logging.Logger:
    import logging
    import sys
    import time

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = self.format(record)
            if write is not None:
                write(line)
            elif sys.stderr is not None:
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()

    formatter = logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = Lines()
    handler.setFormatter(formatter)
    logger = logging.getLogger("torsh")
    logger.handlers[:] = [handler]
    logger.propagate = False  # else a program's own handlers would write it again
    logger.setLevel(level)
    return logger
