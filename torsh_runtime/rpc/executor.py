"""Provides the concurrent.futures interface, carried out by workers."""

from __future__ import annotations

import concurrent.futures
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from torsh_runtime.backends.future import Future
from torsh_runtime.errors import PeerLost
from torsh_runtime.rpc.current import current_agent
from torsh_runtime.rpc.options import UNSET_RPC_TIMEOUT, WorkerInfo

T = TypeVar("T")


class Executor(concurrent.futures.Executor):
    """Runs functions on other workers, each on the worker with the fewest calls.

    Submitted functions cannot be cancelled. A worker that is gone gets no more functions. Those it
    was given fail with PeerLost, and may be submitted again.

    Example:
        ```python
        with tr.rpc.Executor() as executor:
            losses = list(executor.map(evaluate, batches))
        ```
    """

    def __init__(
        self,
        workers: Sequence[str | int | WorkerInfo] | None = None,
        timeout: float = UNSET_RPC_TIMEOUT,
    ) -> None:
        """Create an executor.

        Args:
            workers: The workers, by name, id or WorkerInfo; None is all others that there are now.
            timeout: Seconds that each call may take; by default that of RpcBackendOptions.

        Raises:
            CallRefused: If a worker is unknown, or without init_rpc().
            ValueError: If there are no workers.
        """
        agent = current_agent()
        self._agent = agent
        self._timeout = timeout
        self._lock = threading.Condition()
        everyone = [worker.info for worker in agent.directory.all()]
        given = everyone if workers is None else [agent.directory.find(to).info for to in workers]
        own = agent.own.info
        self._busy: Counter[WorkerInfo] = Counter()
        for info in given:
            if workers is not None or info != own:
                self._busy[info] = 0
        if not self._busy:
            raise ValueError("there is no worker that the executor could run functions on")
        self._is_shut_down = False

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        """Submit a function as concurrent.futures does.

        Args:
            fn: The function, as rpc_sync() takes it.
            *args: The function's arguments.
            **kwargs: The function's arguments by name.

        Returns:
            A future of concurrent.futures.

        Raises:
            PeerLost: When all workers are gone.
            RuntimeError: After shutdown().
            CallRefused: If the function or its arguments cannot be pickled.

        Example:
            ```python
            with tr.rpc.Executor() as executor:
                loss = executor.submit(evaluate, batch).result()
            ```
        """
        result: concurrent.futures.Future[T] = concurrent.futures.Future()
        result.set_running_or_notify_cancel()
        while True:
            info = self._taken()
            try:
                call = self._agent.invoke(info, fn, args, kwargs, self._timeout)
            except PeerLost as error:  # nothing has begun there: try another worker
                self._over(info, error)
            except BaseException as error:
                self._over(info, error)
                raise
            else:
                call.add_done_callback(partial(self._deliver, info, result))
                return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more functions.

        Args:
            wait: Whether to wait until all submitted ones are done.
            cancel_futures: Makes no difference.
        """
        with self._lock:
            self._is_shut_down = True
            while wait and any(self._busy.values()):
                self._lock.wait(1.0)

    def _taken(self) -> WorkerInfo:
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if not self._busy:
                raise PeerLost(-1, "submit", 0, "all workers of the executor have ended")
            info = min(self._busy, key=lambda each: self._busy[each])
            self._busy[info] += 1
            return info

    def _deliver(
        self, info: WorkerInfo, result: concurrent.futures.Future[Any], call: Future
    ) -> None:
        try:
            value = call.value()
        except BaseException as error:
            self._over(info, error)
            result.set_exception(error)
        else:
            self._over(info, None)
            result.set_result(value)

    def _over(self, info: WorkerInfo, error: BaseException | None) -> None:
        with self._lock:
            if info in self._busy:
                self._busy[info] -= 1
            if isinstance(error, PeerLost) and error.rank == info.id:
                self._busy.pop(info, None)
            self._lock.notify_all()
