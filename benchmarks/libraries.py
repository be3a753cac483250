"""One adapter per library: the same operations, each through its public Python API.

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
from pattern import Array
from timing import Call


class Library(Protocol):
    """A connected library; full is the whole buffer, part this rank's share of it."""

    rank: int
    world_size: int

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        """An array of so many elements, where the library likes it best."""
        ...

    def bind(self, operation: str, dtype: str, full: Array, part: Array) -> Call:
        """The operation on these buffers, in place where the operation allows it."""
        ...

    def close(self) -> None:
        """Leave the library in its own orderly way."""
        ...


class _LikeTorch:
    """A library whose functions are named as torch.distributed's; `typed` makes of an array in a
    dtype's storage what they take."""

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
    """torsh_runtime with its default backend, on numpy arrays."""

    def __init__(self) -> None:
        import torsh_runtime as tr

        tr.init_process_group()
        super().__init__(tr, _with_bfloat16)


class Registered(Ours):
    """The same on buffers that all ranks of the node share."""

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        array: Array = self._api.empty_shared(count, storage)
        return array


class Gloo(_LikeTorch):
    """torch.distributed on Gloo with one torch thread."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        super().__init__(
            dist, lambda array, dtype: torch.from_numpy(array).view(getattr(torch, dtype))
        )


class Mpi:
    """mpi4py's buffer interface on whichever MPI its environment holds; float32 only."""

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
        """MPI is finalized at the interpreter's exit."""


class Memcpy:
    """No library: one process copies a buffer of the same size, as the reference."""

    rank, world_size = 0, 1

    def empty(self, count: int, storage: np.dtype[Any]) -> Array:
        return np.empty(count, storage)

    def bind(self, operation: str, dtype: str, full: Array, part: Array) -> Call:
        return partial(np.copyto, part, full)

    def close(self) -> None:
        """Nothing to leave."""


_ADAPTERS: dict[str, Callable[[], Library]] = {
    "ours": Ours,
    "registered": Registered,
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
