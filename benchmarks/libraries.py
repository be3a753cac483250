"""One adapter per library: the same five operations, each through its public Python API.

A bound operation is a callable without arguments that holds the library's own function and its
converted buffers, so that timing it adds nothing to the library's own cost. This module runs in
each library's own environment and needs nothing but numpy and that library.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Call = Callable[[], object]


class Library(Protocol):
    """A connected library; full is the whole buffer, part this rank's share of it."""

    rank: int
    world_size: int

    def bind(self, operation: str, full: Array, part: Array) -> Call:
        """The operation on these buffers, in place where the operation allows it."""
        ...

    def close(self) -> None:
        """Leave the library in its own orderly way."""
        ...


class Ours:
    """torsh_runtime with its default backend."""

    def __init__(self) -> None:
        import torsh_runtime as tr

        tr.init_process_group()
        self._tr: Any = tr
        self.rank, self.world_size = tr.get_rank(), tr.get_world_size()

    def bind(self, operation: str, full: Array, part: Array) -> Call:
        tr = self._tr
        if operation == "all_reduce":
            return partial(tr.all_reduce, full)
        if operation == "all_gather":
            return partial(tr.all_gather_into_tensor, full, part)
        if operation == "reduce_scatter":
            return partial(tr.reduce_scatter_tensor, part, full)
        if operation == "broadcast":
            return partial(tr.broadcast, full, 0)
        return partial(tr.barrier)

    def close(self) -> None:
        self._tr.destroy_process_group()


class Gloo:
    """torch.distributed on Gloo with one torch thread."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self._dist, self._as_tensor = dist, torch.from_numpy
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def bind(self, operation: str, full: Array, part: Array) -> Call:
        dist, whole, share = self._dist, self._as_tensor(full), self._as_tensor(part)
        if operation == "all_reduce":
            return partial(dist.all_reduce, whole)
        if operation == "all_gather":
            return partial(dist.all_gather_into_tensor, whole, share)
        if operation == "reduce_scatter":
            return partial(dist.reduce_scatter_tensor, share, whole)
        if operation == "broadcast":
            return partial(dist.broadcast, whole, 0)
        return partial(dist.barrier)

    def close(self) -> None:
        self._dist.destroy_process_group()


class Mpi:
    """mpi4py's buffer interface on whichever MPI its environment holds."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._world, self._in_place = MPI.COMM_WORLD, MPI.IN_PLACE
        self.rank, self.world_size = self._world.rank, self._world.size

    def bind(self, operation: str, full: Array, part: Array) -> Call:
        world = self._world
        if operation == "all_reduce":
            return partial(world.Allreduce, self._in_place, full)
        if operation == "all_gather":
            return partial(world.Allgather, part, full)
        if operation == "reduce_scatter":
            return partial(world.Reduce_scatter_block, full, part)
        if operation == "broadcast":
            return partial(world.Bcast, full, 0)
        return partial(world.Barrier)

    def close(self) -> None:
        """MPI is finalized at the interpreter's exit."""


class Memcpy:
    """No library: one process copies a buffer of the same size, as the reference."""

    rank, world_size = 0, 1

    def bind(self, operation: str, full: Array, part: Array) -> Call:
        return partial(np.copyto, part, full)

    def close(self) -> None:
        """Nothing to leave."""


_ADAPTERS: dict[str, Callable[[], Library]] = {
    "ours": Ours,
    "gloo": Gloo,
    "mpich": Mpi,
    "openmpi": Mpi,
    "memcpy": Memcpy,
}


def connect(name: str, expected_ranks: int) -> Library:
    """The named library, connected. Raises RuntimeError unless the world is of this size."""
    library = _ADAPTERS[name]()
    if library.world_size != expected_ranks:
        found = f"{library.world_size} ranks instead of {expected_ranks}"
        raise RuntimeError(f"{name} found {found} (pid {os.getpid()})")
    return library
