"""Holds the functions that can be called: by reference, by a name, or without occupying a
thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torsh_runtime.backends.future import Future
from torsh_runtime.rpc.failures import CallRefused

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "_torsh_async_execution"


def async_execution(function: F) -> F:
    """Mark a function that returns a Future: its caller gets the future's value.

    No thread waits for that. The mark may be put under @staticmethod and @classmethod, as in torch.
    The future may be torch's or that of concurrent.futures, too.

    Args:
        function: The function.

    Returns:
        The function. A caller gets TypeError if it returns no future.

    Example:
        ```python
        @tr.rpc.functions.async_execution
        def relay(batch):
            return tr.rpc.rpc_async("worker2", evaluate, (batch,))
        ```
    """
    setattr(function, _MARK, True)
    return function


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether async_execution() has marked the function."""
    return bool(getattr(function, _MARK, False))


def when_done(
    future: Any, function: Callable[..., Any], then: Callable[[Callable[[], Any]], None]
) -> None:
    """Call then(value) when the future is complete. value() returns the future's value or raises
    its error. Raises TypeError if `future` is no future."""
    if isinstance(future, Future) or hasattr(future, "value"):
        get = future.value
    elif hasattr(future, "result") and hasattr(future, "add_done_callback"):
        get = future.result
    else:
        raise TypeError(
            f"{name_of(function)} is marked with async_execution, so it must return a Future, not "
            f"{type(future).__name__}"
        )
    future.add_done_callback(lambda _: then(get))


class Registry:
    """Holds functions that others may call by a name. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._functions: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Register the function under the name. Raises ValueError if another function has the
        name."""
        with self._lock:
            if self._functions.setdefault(name, function) is not function:
                raise ValueError(f"another function is registered as {name!r} already")

    def find(self, name: str) -> Callable[..., Any]:
        """Return the function of this name. Raises CallRefused if there is none."""
        with self._lock:
            found = self._functions.get(name)
            names = ", ".join(map(repr, sorted(self._functions))) or "none"
        if found is None:
            raise CallRefused(
                f"no function is registered as {name!r} on this worker (registered: {names}): call "
                f"torsh_runtime.rpc.register({name!r}, function) there before it is called"
            )
        return found


registry = Registry()
"""The registry of this process. Names may be registered before init_rpc(), too."""


def register(name: str, function: F | None = None) -> Any:
    """Let others call the function by this name, as in rpc_sync("worker1", name).

    Args:
        name: The name.
        function: The function; without it, a decorator is returned.

    Returns:
        The function.

    Raises:
        ValueError: If a different function has the name.

    Example:
        ```python
        @tr.rpc.register("evaluate")
        def evaluate(batch):
            return model(batch).mean().item()
        ```
    """
    if function is None:

        def decorate(decorated: F) -> F:
            registry.register(name, decorated)
            return decorated

        return decorate
    registry.register(name, function)
    return function


def name_of(function: object) -> str:
    """Return the function's name for errors."""
    if isinstance(function, str):
        return function
    return getattr(function, "__qualname__", None) or type(function).__qualname__
