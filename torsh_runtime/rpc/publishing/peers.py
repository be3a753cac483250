"""What publishing needs of the rest of RPC."""

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
    """The other workers, and this one."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    @property
    def own(self) -> WorkerInfo:
        """This worker."""
        return self._agent.own.info

    @property
    def host(self) -> str:
        """Its host's name."""
        return self._agent.own.host

    @property
    def store(self) -> StoreClient:
        """The one that all workers reach."""
        return self._agent.directory.store

    def seconds(self, timeout: Any) -> float:
        """A timeout as users give it; like that of a call it is bounded by the deadline of the call
        that this thread carries out."""
        own = seconds(timeout, self._agent.options.rpc_timeout)
        inherited = self._agent.servers.context.deadline
        return own if inherited is None else max(min(own, inherited - monotonic()), 0.0)

    def is_connected(self, worker: WorkerInfo) -> bool:
        """Whether there is a connection to the worker now, whose end would be told."""
        return worker.id in self._agent.links.peers()

    def call(
        self, worker: WorkerInfo, function: Callable[..., Any], *args: Any, timeout: float
    ) -> Any:
        """The function's result. PeerLost also for a worker that has left."""
        limit = 0 if timeout == math.inf else max(timeout, 1e-3)
        try:
            self._agent.directory.find(worker)
            return self._agent.call(worker, function, args, {}, limit)
        except StoreError:  # it is looked for where it was served, perhaps by itself
            reason = "it has ended, and so has the store that tells where workers are"
        except CallRefused:
            reason = "it has left"
        raise lost(worker, "its host", function.__name__, reason)

    def notify(self, worker: WorkerInfo, function: Callable[..., Any], *args: Any) -> None:
        """The same without waiting, also from finalizers; nobody learns of errors."""
        self._agent.references.call_later(worker, function, *args)
