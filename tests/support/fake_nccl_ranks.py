"""What the ranks of a fake NCCL communicator do together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.fake_cuda import Gpu, Machine, Task
from support.fake_nccl_sums import SIZES, DataType, moved

SUCCESS, INTERNAL_ERROR = 0, 3
"""ncclResult_t."""
_PATIENCE = 60.0
"""Seconds after which a call that holds its caller up goes on."""


class NCCLError(Exception):
    """What NCCL returns an error for."""


@dataclass(eq=False)
class Op:
    """One rank's part of an operation."""

    kind: str
    rank: int
    count: int
    dtype: DataType
    source: int = 0
    target: int = 0
    red_op: int = 0
    factor: Any = None
    root: int = -1
    """Of a message: the other rank."""
    launch: Launch | None = None
    index: int = 0
    """Which one it is of its kind, its rank's and, of a message, its peer's."""
    over: bool = False

    @property
    def call(self) -> tuple[Any, ...]:
        """What must be the same on all ranks."""
        root = -1 if self.kind in ("send", "recv") else self.root
        return (self.kind.replace("recv", "send"), self.count, self.dtype, self.red_op, root)


@dataclass(eq=False)
class Launch:
    """What one rank puts on a stream at once."""

    rank: int
    ops: list[Op]
    task: Task | None = None
    begun: bool = False


@dataclass(eq=False)
class Clique:
    """The ranks of one communicator."""

    machine: Machine
    size: int
    gpus: dict[int, Gpu] = field(default_factory=dict)
    collectives: dict[int, list[Op]] = field(default_factory=lambda: defaultdict(list))
    messages: dict[Any, list[Op]] = field(default_factory=lambda: defaultdict(list))
    connected: set[Any] = field(default_factory=set)
    last: dict[int, Task] = field(default_factory=dict)
    error: int = SUCCESS
    suspended: dict[int, bool] = field(default_factory=dict)
    changes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """How often each rank has been suspended or resumed."""
    aborted: set[int] = field(default_factory=set)

    def join(self, rank: int, size: int, gpu: Gpu) -> None:
        with self.machine.moved:
            if size != self.size or rank not in range(size) or rank in self.gpus:
                raise NCCLError(f"invalid usage: rank {rank} of {size}, in a clique of {self.size}")
            if gpu in self.gpus.values():
                raise NCCLError("invalid usage: Duplicate GPU detected")
            self.gpus[rank] = gpu
            self.machine.moved.notify_all()
            self.machine.moved.wait_for(lambda: len(self.gpus) == self.size, _PATIENCE)

    def all_ranks_become(self, rank: int, suspended: bool) -> bool:
        """Whether all ranks have come to suspend or resume the communicator; False once it is
        aborted."""
        with self.machine.moved:
            self.changes[rank] += 1
            number = self.changes[rank]
            self.machine.moved.notify_all()
            self.machine.moved.wait_for(
                lambda: rank in self.aborted or self._have_come(number), _PATIENCE
            )
            self.suspended[rank] = suspended
            return rank not in self.aborted

    def _have_come(self, number: int) -> bool:
        return all(self.changes[rank] >= number for rank in range(self.size))

    def enqueue(self, op: Op) -> None:
        """Note the operation where its counterparts find it."""
        if op.kind in ("send", "recv"):
            ends = (op.rank, op.root) if op.kind == "send" else (op.root, op.rank)
            same = self.messages[op.kind, *ends]
        else:
            same = self.collectives[op.rank]
        op.index = len(same)
        same.append(op)

    def connect(self, rank: int, ops: list[Op]) -> None:
        """Hold the caller up until those that it first has to do with are there as well."""
        own: set[Any] = set()
        wanted: set[Any] = set()
        for op in ops:
            message = op.kind in ("send", "recv")
            own.add((op.rank, op.root if message else "all"))
            peers = [op.root] if message else range(self.size)
            wanted |= {(peer, op.rank if message else "all") for peer in peers}
        with self.machine.moved:
            self.connected |= own
            self.machine.moved.notify_all()
            self.machine.moved.wait_for(
                lambda: rank in self.aborted or wanted <= self.connected, _PATIENCE
            )
            if rank in self.aborted:
                raise NCCLError("internal error: the communicator was aborted")

    def run(self, launch: Launch) -> bool:
        """Whether all its operations are done, after those that can be were."""
        if launch.rank in self.aborted:
            return True
        self._begin(launch)
        for op in launch.ops:
            if not op.over:
                self._try(op)
        return all(op.over for op in launch.ops)

    def fail(self, fault: str) -> None:
        self.machine.faults.append(fault)
        self.error = INTERNAL_ERROR

    def abort(self, rank: int) -> None:
        """The rank's own part is over; the others' wait on."""
        with self.machine.moved:
            self.aborted.add(rank)
            self.machine.moved.notify_all()

    def _begin(self, launch: Launch) -> None:
        if not launch.begun:
            launch.begun = True
            self.machine.note_progress()

    def _try(self, op: Op) -> None:
        ops = self._counterparts(op)
        if len(ops) < (2 if op.kind in ("send", "recv") else self.size):
            return
        if any(other.rank in self.aborted for other in ops):
            return
        for other in ops:
            launch = other.launch
            assert launch is not None
            if launch.begun:
                continue
            if launch.task is None or not self.machine.reach(launch.task):
                return
            self._begin(launch)
        self.machine.reuse()
        if op.over:  # by now
            return
        for other in ops:
            other.over = True
        self.machine.note_progress()
        self._move(ops)

    def _move(self, ops: list[Op]) -> None:
        calls = {op.call for op in ops}
        if len(calls) > 1:
            self.fail(f"the ranks' calls differ: {sorted(map(str, calls))}")
        else:
            moved(ops, self._memory)

    def _memory(self, op: Op, address: int, count: int) -> Any:
        size = SIZES[op.dtype]
        view = self.machine.memory(self.gpus[op.rank], address, count * size)
        if view is None:
            self.error = INTERNAL_ERROR
            return np.empty(count * size, np.uint8)
        return view

    def _counterparts(self, op: Op) -> list[Op]:
        if op.kind in ("send", "recv"):
            ends = (op.rank, op.root) if op.kind == "send" else (op.root, op.rank)
            sides = [self.messages[kind, *ends] for kind in ("send", "recv")]
        else:
            sides = [self.collectives[rank] for rank in range(self.size)]
        return [side[op.index] for side in sides if op.index < len(side)]
