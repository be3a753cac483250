"""Checks what programs pass to the store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

Timeout = float | timedelta | None


Value = str | bytes


def check_keys(keys: Sequence[str]) -> None:
    """Raise TypeError for one string in place of a list of keys."""
    if isinstance(keys, str):
        raise TypeError(f"keys is the string {keys!r}; it must be a list of keys")


def as_bytes(value: Value) -> bytes:
    """Return the bytes of a value, or raise TypeError."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a value must be bytes or a string, not {type(value).__name__}")
    return bytes(value)


def in_seconds(timeout: Timeout, default: float) -> float:
    """Return a timeout in seconds, `default` for None, or raise ValueError."""
    if timeout is None:
        return default
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, str) or not seconds >= 0:
        raise ValueError(
            f"a timeout is a number of seconds from 0, or a timedelta, not {timeout!r}"
        )
    return float(seconds)
