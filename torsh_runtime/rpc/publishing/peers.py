"""What publishing needs of the rest of RPC."""

from __future__ import annotations

from typing import Any, Protocol

from torsh_runtime.store.client import StoreClient


class Peers(Protocol):
    """The other workers, and this one."""

    @property
    def worker(self) -> str:
        """This worker's name."""

    @property
    def rank(self) -> int:
        """Its id among the workers."""

    @property
    def host(self) -> str:
        """Its host's name."""

    @property
    def store(self) -> StoreClient:
        """The job's."""

    def call(self, worker: str, function: str, *args: Any, timeout: float) -> Any:
        """The result of a function that the worker serves under this name; of one that returns a
        future, the future's. PeerLost if the worker has ended, TimeoutError if nothing comes
        within `timeout` seconds (math.inf: no limit), the function's own error otherwise."""

    def notify(self, worker: str, function: str, *args: Any) -> None:
        """The same without waiting; errors are nobody's."""
