"""Lets verify() run models whose first forward passes are not watched: it reports what differs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

is_watched: ContextVar[bool] = ContextVar("is_watched", default=True)
"""True if first forward passes raise ConfigError where features are mixed."""


@contextmanager
def unwatched() -> Iterator[None]:
    """Let forward passes in this block mix features of which ranks have parts."""
    token = is_watched.set(False)
    try:
        yield
    finally:
        is_watched.reset(token)
