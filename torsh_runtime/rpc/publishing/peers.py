"""The part of RPC that publishing needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from torsh_runtime.errors import StoreError
from torsh_runtime.rpc.failures import CallRefused, lost
from torsh_runtime.rpc.options import WorkerInfo, seconds
from torsh_runtime.store.client import StoreClient

if TYPE_CHECKING:
    from torsh_runtime.rpc.agent import Agent


class Peers:
    """Represents the other workers and this one."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def own(self) -> WorkerInfo:
        """Return the name and id of this worker."""
        return self._agent.own.info

    @property
    def host(self) -> str:
        """Return the name of this worker's host."""
        return self._agent.own.host

    @property
    def store(self) -> StoreClient:
        """Return the store that all workers reach."""
        return self._agent.directory.store

    def seconds(self, timeout: Any) -> float:
        """Return the seconds of a timeout that a user gave. Like that of a call, it is bounded by
        the deadline of the call that this thread carries out."""
        own = seconds(timeout, self._agent.options.rpc_timeout)
        inherited = self._agent.servers.context.deadline
        return own if inherited is None else max(min(own, inherited - monotonic()), 0.0)

    def is_connected(self, worker: WorkerInfo) -> bool:
        """Return whether there is a connection to the worker now, whose end would be noticed."""
        return worker.id in self._agent.links.peers()

    def call(
        self, worker: WorkerInfo, function: Callable[..., Any], *args: Any, timeout: float
    ) -> Any:
        """Call a function on a worker and return its result. Raises PeerLost also for a worker that
        has left."""
        limit = 0 if timeout == math.inf else max(timeout, 1e-3)
        try:
            self._agent.directory.find(worker)
            return self._agent.call(worker, function, args, {}, limit)
        except StoreError:  # the store may have ended with the worker
            reason = "it has ended, and so has the store that tells where workers are"
        except CallRefused:
            reason = "it has left"
        raise lost(worker, "its host", function.__name__, reason)

    def notify(self, worker: WorkerInfo, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on a worker without waiting, also from finalizers. Errors are not
        reported."""
        self._agent.references.call_later(worker, function, *args)
