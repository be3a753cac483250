"""What a writer answers to readers that cannot open its memory. They call these functions."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.layout import Piece
from torsh_runtime.rpc.current import current_agent
from torsh_runtime.rpc.functions import async_execution
from torsh_runtime.rpc.options import WorkerInfo


def find(name: str) -> None:
    """NotPublished if this worker does not publish it."""
    current_agent().publications().find(name)


def pin(name: str, reader: WorkerInfo) -> tuple[int, int, bytes] | None:
    """See Publication.pin()."""
    return current_agent().publications().pin(name, reader)


def unpin(name: str, number: int) -> None:
    """See Publication.unpin()."""
    current_agent().publications().find(name).unpin(number)


def fetch(name: str, number: int, wanted: Sequence[tuple[str, Piece]]) -> list[NDArray[np.uint8]]:
    """See Publication.fetch()."""
    return current_agent().publications().find(name).fetch(number, wanted)


@async_execution
def await_newer(name: str, reader: tuple[int, int], version: int) -> Future[bool]:
    """See Publication.await_newer()."""
    return current_agent().publications().find(name).await_newer(reader, version)
