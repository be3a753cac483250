"""Counts the programs that this process runs and that asyncio waits for: no other may reap them."""

from __future__ import annotations

_running = 0


def begin() -> None:
    """Note that a program is about to be started."""
    global _running
    _running += 1


def end() -> None:
    """Note that it was reaped, or was not started after all."""
    global _running
    _running -= 1


def run() -> bool:
    """Return whether some may not be reaped yet."""
    return _running > 0
