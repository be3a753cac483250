"""Manages the ranks that take part: init(), shutdown(), ranks, and process sets."""

from __future__ import annotations

import atexit
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.registry import is_available
from torsh_runtime.bootstrap import destroy_process_group, init_process_group, worker_env
from torsh_runtime.comm.default import default_group, has_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.groups import new_group
from torsh_runtime.comm.objects import all_gather_object
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.horovod.torch.engine import Engine
from torsh_runtime.launchers import completed


class ProcessSet:
    """Represents some of the ranks, which call operations together."""

    def __init__(self, ranks: Iterable[int]) -> None:
        try:
            self.ranks: list[int] | None = sorted(int(rank) for rank in ranks)
        except TypeError:
            raise ConfigError(
                "a ProcessSet is made from a list of ranks; MPI communicators are not used here"
            ) from None
        self.process_set_id: int | None = None
        self._engine: Engine | None = None
        self._unnamed: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def size(self) -> int | None:
        """Return the number of ranks in the set; None before it is added."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> int | None:
        """Return this process's rank in the set; None before it is added.

        Raises ConfigError if it is not in the set.
        """
        return None if self.process_set_id is None else self.place(rank())

    def included(self) -> bool:
        """Return whether this process is in the set."""
        return rank() in (self.ranks or ())

    def place(self, global_rank: int) -> int:
        """Return a global rank's rank in the set. Raises ConfigError if it is not in the set."""
        if self.ranks is None or global_rank not in self.ranks:
            raise ConfigError(f"rank {global_rank} is not in the set of ranks {self.ranks}")
        return self.ranks.index(global_rank)

    @property
    def engine(self) -> Engine:
        """Return the engine that carries out the set's operations.

        Raises ConfigError if there is none in this process.
        """
        _world()
        if self._engine is None:
            reason = (
                f"rank {rank()} is not in it"
                if self.process_set_id is not None
                else "it has not been added: give it to init(process_sets=[...]) or "
                "add_process_set()"
            )
            raise ConfigError(f"no operation can be called in {self!r}: {reason}")
        return self._engine

    def name(self, kind: str) -> str:
        """Return a name for a call without one. Such calls are matched by their order."""
        return f"{kind}.noname.{self.number(kind)}"

    def number(self, kind: str) -> int:
        """Count one more call of this kind, and return the count."""
        self._unnamed[kind] += 1
        return self._unnamed[kind]

    def _open(self, number: int) -> None:
        members = self.ranks or []
        self.process_set_id = number
        self._unnamed.clear()
        if rank() in members:
            group = new_group(members, group_desc=f"horovod {number}")
            self._engine = Engine(group, partial(_gpu_group, members))

    def _close(self) -> None:
        engine, self._engine = self._engine, None
        self.process_set_id = None
        if engine is not None:
            engine.close()


class _Place(NamedTuple):
    node_rank: int
    local_rank: int
    local_size: int


class _World:
    """Holds everything that exists between init() and shutdown()."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.owns_group = not has_default_group()
        group = _make_default_group() if self.owns_group else default_group()
        self.rank, self.size = group.rank, group.world_size
        env = _environment(self.rank, self.size)
        self.place = _Place(env.node_rank, env.local_rank, env.local_world_size)
        self.places = [self.place] * self.size
        all_gather_object(self.places, self.place)
        self.sets: list[ProcessSet] = []
        self.sets_made = 0

    def add(self, process_set: ProcessSet) -> None:
        ranks = process_set.ranks or []
        if not ranks or len({*ranks}) != len(ranks) or not {*ranks} <= {*range(self.size)}:
            raise ConfigError(
                f"a set of ranks {ranks} cannot be made: ranks are 0 to {self.size - 1}, each once"
            )
        if any(each.ranks == ranks for each in self.sets):
            raise ConfigError(f"there is a set of ranks {ranks} already")
        process_set._open(self.sets_made)
        self.sets.append(process_set)
        self.sets_made += 1

    def close(self) -> None:
        for each in reversed(self.sets):
            each._close()
        if self.owns_group and has_default_group():
            destroy_process_group()


global_process_set = ProcessSet([])
"""The set of all ranks."""
_current: list[_World] = []  # has one element between init() and shutdown()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connect to all ranks. Calling it again before shutdown() has no effect.

    comm: must be None, or all ranks. process_sets: sets to create now; "dynamic" creates none, and
        add_process_set() can be called in either case. Raises ConfigError for anything else.
    """
    if _current:
        return
    world = _World()
    if comm is not None and [*comm] not in ([], [*range(world.size)]):
        world.close()
        raise ConfigError(f"init(comm={comm!r}) is not supported: use process_sets for some ranks")
    _current.append(world)
    global_process_set.ranks = [*range(world.size)]
    atexit.register(shutdown)
    world.add(global_process_set)
    for each in () if process_sets is None or isinstance(process_sets, str) else process_sets:
        world.add(each)


def shutdown() -> None:
    """Leave the other ranks. A rank that still needs this one gets PeerLost."""
    atexit.unregister(shutdown)
    world = _current.pop() if _current else None
    if world is not None and world.pid == os.getpid():  # not when a forked process exits
        world.close()


def is_initialized() -> bool:
    """Return whether init() has been called, without shutdown() since."""
    return bool(_current)


def rank() -> int:
    """Return the rank of this process."""
    return _world().rank


def size() -> int:
    """Return the number of ranks."""
    return _world().size


def local_rank() -> int:
    """Return this process's rank on its node."""
    return _world().place.local_rank


def local_size() -> int:
    """Return the number of ranks on this node."""
    return _world().place.local_size


def cross_rank() -> int:
    """Return this node's number among the nodes that have a rank with this local_rank()."""
    return _cross_nodes().index(_world().place.node_rank)


def cross_size() -> int:
    """Return the number of nodes that have a rank with this process's local_rank()."""
    return len(_cross_nodes())


def is_homogeneous() -> bool:
    """Return whether all nodes have the same number of ranks."""
    return len({each.local_size for each in _world().places}) == 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Create the set, and return it. All ranks call this, in the same order."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _world().add(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Dissolve the set, and return whether it existed. All its ranks call this."""
    world = _world()
    if process_set is global_process_set or process_set not in world.sets:
        return False
    world.sets.remove(process_set)
    process_set._close()
    return True


def mpi_built() -> bool:
    """Return False: MPI is not used."""
    return False


def mpi_enabled() -> bool:
    """Return False: MPI is not used."""
    return False


def mpi_threads_supported() -> bool:
    """Raise ConfigError: MPI is not used."""
    raise ConfigError("mpi_threads_supported(): MPI is not used here (mpi_enabled() is False)")


def gloo_built() -> bool:
    """Return True: torsh_runtime has its own collectives on CPUs without MPI."""
    return True


def gloo_enabled() -> bool:
    """Return True, like gloo_built()."""
    return True


def nccl_built() -> int:
    """Return NCCL's version, such as 22304, if torch and torsh_runtime can use it; else 0."""
    if not (torch.cuda.is_available() and is_available(BackendType.NCCL)):
        return 0
    version: Any = torch.cuda.nccl.version
    major, minor, patch = map(int, version()[:3])
    return major * 10000 + minor * 100 + patch


def cuda_built() -> bool:
    """Return whether torch was built with CUDA."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Return False: ROCm is not supported."""
    return False


def ddl_built() -> bool:
    """Return False: IBM's library is not used."""
    return False


def ccl_built() -> bool:
    """Return False: Intel's library is not used."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Raise ConfigError: Horovod's timelines are not supported."""
    raise ConfigError(
        "start_timeline() is not supported: `torshctl trace` writes a trace of all ranks' "
        "collectives, of a job that runs or has ended"
    )


def stop_timeline() -> None:
    """Raise ConfigError, like start_timeline()."""
    start_timeline("")


def _world() -> _World:
    if not _current:
        raise ConfigError("horovod has not been initialized: call hvd.init() first")
    return _current[0]


def _cross_nodes() -> list[int]:
    world = _world()
    own = world.place.local_rank
    return sorted({each.node_rank for each in world.places if each.local_rank == own})


def _make_default_group() -> ProcessGroup:
    if "RANK" in completed(os.environ):
        return init_process_group()
    return init_process_group(rank=0, world_size=1)  # the program was started without a launcher


def _environment(own_rank: int, world_size: int) -> WorkerEnv:
    if "RANK" in completed(os.environ):
        return worker_env("env://", -1, -1)
    return WorkerEnv(
        rank=own_rank, world_size=world_size, local_rank=own_rank, local_world_size=world_size
    )


def _gpu_group(ranks: Sequence[int], device: int) -> ProcessGroup:
    return new_group(ranks, backend="nccl", device_id=device)
