"""State of modules that have parts of parameters: it is refused unless parts are what is meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torsh_runtime.errors import ConfigError

_are_meant = ContextVar("parts_are_meant", default=False)


@contextmanager
def parts_are_meant() -> Iterator[None]:
    """Allow a module's state to have parts in this block."""
    before = _are_meant.set(True)
    try:
        yield
    finally:
        _are_meant.reset(before)


def are_meant() -> bool:
    """Return whether parts are allowed, by a block of parts_are_meant()."""
    return _are_meant.get()


def refusing(text: str, is_whole: Callable[[], bool]) -> Callable[[], None]:
    """Return a function that raises ConfigError with this text if parts would be taken for whole
    parameters. is_whole: returns whether there are no parts now."""

    def refuse() -> None:
        if not (_are_meant.get() or is_whole()):
            raise ConfigError(text)

    return refuse
