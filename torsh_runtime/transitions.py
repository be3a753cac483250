"""Writes a line to stderr for each change of a state machine's state, if TORSH_LOG asks for it.

    2026-11-28T05:00:02.123Z DEBUG torsh.agent: running -> stopping (failure; round 0, node 0)

Nothing is written without the variable, and logging is not even loaded: that would make every
worker's start longer. The agent and its workers read the same variable.
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
"""What the variable may say. All that is written so far is of the first one."""
_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"

_logger: logging.Logger | None = None
_is_begun = _is_worker = False


def level_of(environ: Mapping[str, str]) -> str:
    """Which level the variable asks for; "" if it asks for none. ConfigError for any other word."""
    level = environ.get(VARIABLE, "")
    if level and level.lower() not in LEVELS:
        listed = f"{', '.join(LEVELS[:-1])} or {LEVELS[-1]}"
        raise ConfigError(f"{VARIABLE}={level[:100]} is no level: give {listed}, or unset it")
    return level.lower()


def begin(write: Callable[[str], None] | None = None) -> None:
    """Do from now on what the variable asks for. `write` takes each line of an agent; a worker's
    lines go to stderr. ConfigError if the variable names no level.
    """
    global _logger, _is_begun, _is_worker
    level = level_of(os.environ)
    _logger = _make_logger(level.upper(), write) if level else None
    _is_begun, _is_worker = True, write is None


def is_on() -> bool:
    """Whether changes are written at all. ConfigError if the variable names no level."""
    if not _is_begun:
        begin()
    return _logger is not None


def note(machine: str, old: str, new: str, why: str = "", **place: object) -> None:
    """Write that the machine has changed from one state to the other. `place` says where, in the
    order given; a worker's round and rank are added.
    """
    if not is_on() or _logger is None:
        return
    where = ", ".join(f"{name} {value}" for name, value in _placed(place) if value != "")
    said = "; ".join(filter(None, (why, where)))
    change = f"{old} -> {new} ({said})" if said else f"{old} -> {new}"
    _logger.getChild(machine).debug("%s", change.replace("\n", " "))


class Machine:
    """Remembers the state of one machine, so that whoever drives it only says which it has now."""

    __slots__ = ("_name", "state")

    def __init__(self, name: str, state: str) -> None:
        self._name = name
        self.state = state

    def become(self, state: str, why: str = "", **place: object) -> None:
        """The machine is in this state now, in which it may have been before."""
        old, self.state = self.state, state
        if old != state:
            note(self._name, old, state, why, **place)

    @contextmanager
    def during(self, state: str, then: str, why: str = "", **place: object) -> Iterator[None]:
        """The machine is in `state` within the with statement, and in `then` afterwards, or has
        failed."""
        self.become(state, why, **place)
        try:
            yield
        except BaseException as error:
            self.become("failed", f"{type(error).__name__}: {error}" if is_on() else "", **place)
            raise
        self.become(then, why, **place)


def _placed(place: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The place, and the round and the rank of a worker, as the agent has told it."""
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
    logger.propagate = False  # a program's own handlers would write it again
    logger.setLevel(level)
    return logger
