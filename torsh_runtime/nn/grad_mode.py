"""Sets for each thread whether operations are recorded for a backward pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Mode(threading.local):
    enabled = True


_mode = _Mode()


def is_grad_enabled() -> bool:
    """Return whether this thread's operations are recorded.

    Example:
        ```python
        with tr.nn.no_grad():
            tr.nn.is_grad_enabled()  # False
        ```
    """
    return _mode.enabled


@contextmanager
def set_grad_enabled(enabled: bool) -> Iterator[None]:
    """Record this thread's operations within the block, or do not; also a decorator.

    Args:
        enabled: Whether to record.

    Example:
        ```python
        with tr.nn.set_grad_enabled(is_training):
            loss = model(batch).mean()
        ```
    """
    before, _mode.enabled = _mode.enabled, enabled
    try:
        yield
    finally:
        _mode.enabled = before


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing within the block; also a decorator.

    Example:
        ```python
        with tr.nn.no_grad():
            predictions = model(batch)
        ```
    """
    with set_grad_enabled(False):
        yield


@contextmanager
def enable_grad() -> Iterator[None]:
    """Record again, within a block that does not; also a decorator.

    Example:
        ```python
        with tr.nn.no_grad(), tr.nn.enable_grad():
            loss = model(batch).mean()  # is recorded
        ```
    """
    with set_grad_enabled(True):
        yield
