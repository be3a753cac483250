"""Functions of a writer that readers call if they cannot open its memory."""

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
    """Raise NotPublished unless this worker publishes the name."""
    current_agent().publications().find(name)


def pin(name: str, reader: WorkerInfo) -> tuple[int, int, bytes] | None:
    """Call Publication.pin() of the name."""
    return current_agent().publications().pin(name, reader)


def unpin(name: str, number: int) -> None:
    """Call Publication.unpin() of the name."""
    current_agent().publications().find(name).unpin(number)


def fetch(name: str, number: int, wanted: Sequence[tuple[str, Piece]]) -> list[NDArray[np.uint8]]:
    """Call Publication.fetch() of the name."""
    return current_agent().publications().find(name).fetch(number, wanted)


@async_execution
def await_newer(name: str, reader: tuple[int, int], version: int) -> Future[bool]:
    """Call Publication.await_newer() of the name."""
    return current_agent().publications().find(name).await_newer(reader, version)
