"""Name lookups that nobody has to wait for: a resolver that hangs must not keep a command alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Detached(ThreadPoolExecutor):
    """Each call in a daemon thread of its own, which nothing waits for at its end."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # as an executor's
                future.set_exception(error)

        Thread(target=work, name="torsh-lookup", daemon=True).start()
        return future


def detach() -> None:
    """Have the running loop make its calls, lookups of names above all, in threads of that kind."""
    asyncio.get_running_loop().set_default_executor(_Detached())
