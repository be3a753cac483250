"""Defines one adapter per library: the same operations, each through its public Python API.

A bound operation is a callable without arguments that holds the library's own function and its
converted buffers, so that timing it adds nothing to the library's own cost. This module runs in
each library's own environment and needs only numpy and that library.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
from pattern import Array
from timing import Call


class Library(Protocol):
    """Represents a connected library. `full` is the whole buffer, `part` this rank's share."""

    rank: int
    world_size: int

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        """Return an array of `count` elements, in the memory that suits the library best."""
        ...

    def bind(self, operation: str, dtype: str, full: Array, part: Array) -> Call:
        """Return the operation on these buffers, in place if the operation allows it."""
        ...

    def close(self) -> None:
        """Leave the library in its own orderly way."""
        ...


class _LikeTorch:
    """Adapts a library whose functions are named like torch.distributed's.

    `typed` converts an array in a dtype's storage for these functions.
    """

    def __init__(self, api: Any, typed: Callable[[Array, str], Any]) -> None:
        self._api, self._typed = api, typed
        self.rank: int = api.get_rank()
        self.world_size: int = api.get_world_size()

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        return np.empty(count, storage)

    def bind(self, operation: str, dtype: str, full: Array, part: Array) -> Call:
        api, whole, share = self._api, self._typed(full, dtype), self._typed(part, dtype)
        match operation:
            case "all_reduce":
                return partial(api.all_reduce, whole)
            case "all_gather":
                return partial(api.all_gather_into_tensor, whole, share)
            case "reduce_scatter":
                return partial(api.reduce_scatter_tensor, share, whole)
            case "broadcast":
                return partial(api.broadcast, whole, 0)
            case "all_to_all":
                return partial(api.all_to_all_single, share, whole)
            case _:
                return partial(api.barrier)

    def close(self) -> None:
        self._api.destroy_process_group()


def _with_bfloat16(array: Array, dtype: str) -> Array:
    if dtype != "bfloat16":
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)


class Ours(_LikeTorch):
    """Adapts torsh_runtime with its default backend, on numpy arrays."""

    def __init__(self) -> None:
        import torsh_runtime as tr

        tr.init_process_group()
        super().__init__(tr, _with_bfloat16)


class Registered(Ours):
    """Adapts torsh_runtime on buffers that all ranks of the node share."""

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        array: Array = self._api.empty_shared(count, storage)
        return array


class Gloo(_LikeTorch):
    """Adapts torch.distributed on Gloo with one torch thread."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        super().__init__(
            dist, lambda array, dtype: torch.from_numpy(array).view(getattr(torch, dtype))
        )


class Mpi:
    """Adapts mpi4py's buffer interface on the MPI of its environment; float32 only."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._world, self._in_place = MPI.COMM_WORLD, MPI.IN_PLACE
        self.rank, self.world_size = self._world.rank, self._world.size

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        return np.empty(count, storage)

    def bind(self, operation: str, dtype: str, full: Array, part: Array) -> Call:
        world = self._world
        match operation:
            case "all_reduce":
                return partial(world.Allreduce, self._in_place, full)
            case "all_gather":
                return partial(world.Allgather, part, full)
            case "reduce_scatter":
                return partial(world.Reduce_scatter_block, full, part)
            case "broadcast":
                return partial(world.Bcast, full, 0)
            case "all_to_all":
                return partial(world.Alltoall, full, part)
            case _:
                return partial(world.Barrier)

    def close(self) -> None:
        """Leave the finalization of MPI to the interpreter's exit."""


class Memcpy:
    """Copies a buffer of the same size in one process, without any library, as the reference."""

    rank, world_size = 0, 1

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        return np.empty(count, storage)

    def bind(self, operation: str, dtype: str, full: Array, part: Array) -> Call:
        return partial(np.copyto, part, full)

    def close(self) -> None:
        """Do nothing, as there is no library to leave."""


_ADAPTERS: dict[str, Callable[[], Library]] = {
    "ours": Ours,
    "registered": Registered,
    "gloo": Gloo,
    "mpich": Mpi,
    "openmpi": Mpi,
    "memcpy": Memcpy,
}


def connect(name: str, expected_ranks: int) -> Library:
    """Return the named library, connected. Raises RuntimeError unless the world has this size."""
    library = _ADAPTERS[name]()
    if library.world_size != expected_ranks:
        found = f"{library.world_size} ranks instead of {expected_ranks}"
        raise RuntimeError(f"{name} found {found} (pid {os.getpid()})")
    return library
