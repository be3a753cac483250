"""Commits a training run's state to the agents' memory, on all ranks together."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.arrays.copying import Copying
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.saving import Begun, Planner
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.checkpoint.writer import FileLayout, Snapshot
from torsh_runtime.comm.agreement import Attempt
from torsh_runtime.elastic.fetching import Fetching, landings_of
from torsh_runtime.elastic.memory import (
    COPIES,
    OWN,
    TURNS,
    Commit,
    CommitMemory,
    aligned_starts,
)
from torsh_runtime.elastic.parts import (
    Key,
    NodeParts,
    Part,
    WholeCommit,
    parts_of,
    told_of,
    told_values,
)
from torsh_runtime.elastic.plan import CommitPlan, plan_commit
from torsh_runtime.errors import CheckpointError
from torsh_runtime.parallel.state import Restoration, check_state
from torsh_runtime.transitions import Machine

Bytes = NDArray[np.uint8]
_USER = "tr.elastic.State"
_MOST_KEYS = 4
"""Number of commits that a node reports."""


class Commits:
    """Commits and restores one training run's state. All ranks make the same calls in the same
    order."""

    def __init__(self, ranks: Ranks, environ: Mapping[str, str] = os.environ) -> None:
        self._ranks = ranks
        self._memory = CommitMemory.of_agent(environ)
        self._node = environ.get("GROUP_RANK", "0")
        self._planner = Planner(ranks, partial(plan_commit, rank=ranks.rank), self._node)
        self._rooms: dict[int, _Room] = {}
        """The memory of each turn, by turn."""
        self._plan: CommitPlan | None = None
        self._sequence: int | None = None
        """Sequence number of the last commit; None if it is not known yet."""
        self._seen = Machine("commits", "idle")

    def commit(self, state: Mapping[str, Any]) -> None:
        """Keep the current state in the agents' memory.

        When this returns on one rank, all ranks have kept it, and another node has a copy of what
        only one node has. Raises CheckpointError on all ranks if one cannot keep its state.
        """
        if self._sequence is None:
            there = [] if self._memory is None else self._memory.commits()
            keys = self._keys((each.sequence, each.token) for each, _ in there)[1]
            self._sequence = max(sequence for sequence, _ in [(0, 0), *keys])
        if self._memory is None:
            return
        self._memory.claim(_USER)
        with self._seen.during("committing", "committed", f"commit {self._sequence + 1}"):
            self._commit(state, self._sequence + 1, self._memory)

    def _commit(self, state: Mapping[str, Any], sequence: int, memory: CommitMemory) -> None:
        memory.begin(sequence % TURNS)
        begun = self._planner.begin(sequence, state, async_op=False)
        if begun.plan is not self._plan:
            self._rooms.clear()
            self._plan = begun.plan
        self._keep(sequence, begun, memory)
        self._sequence = sequence

    def restore(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        """Restore the last commit that the nodes together still have, and return its plain values.

        Returns None if there is none. Raises CheckpointError if it does not fit the state.
        """
        with self._seen.during("restoring", "restored"):
            return self._restored(state)

    def _restored(self, state: Mapping[str, Any]) -> dict[str, Any] | None:
        if self._memory is not None:
            self._memory.claim(_USER)
        here = {} if self._memory is None else parts_of(self._memory.commits())
        nodes, keys = self._keys(here)
        newest = max(sequence for sequence, _ in [(0, 0), *keys])
        self._sequence = newest
        for key in sorted(keys, reverse=True):
            own = here.get(key, NodeParts())
            try:
                told = self._parts_of_all(own, nodes)
                whole = WholeCommit(key[0], [part for parts in told for part in parts])
            except CheckpointError:  # on all ranks
                continue
            values = self._restore(state, whole, self._fetching(whole, own, told, nodes))
            # The next commit must not overwrite this one, the only one that is complete.
            self._sequence = newest + (newest - key[0]) % TURNS
            return values
        self._check(state)
        return None

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raise CheckpointError on all ranks for models that commit() could not keep."""
        with Attempt() as attempt:  # the program's own models may raise anything
            check_state(state, self._ranks)
        self._agree(attempt, "keep the state")

    def _keep(self, sequence: int, begun: Begun[CommitPlan], memory: CommitMemory) -> None:
        plan, what = begun.plan, "keep a commit"
        with Attempt() as attempt:
            room = self._room(plan, sequence % TURNS, memory)
            room.take(begun.contents.tensors)
        self._agree(attempt, what)
        values = told_values(begun.contents, plan.is_copied)
        told: tuple[bytes, ...] = (room.told_own, values)
        own = Commit(sequence, begun.token, plan.num_tensors, told)
        with Attempt() as attempt:
            if plan.is_copied:
                told = self._exchange(plan, room, (room.told_alone, values))
                memory.finish(COPIES, own._replace(told=told), room.copies.size)
            memory.finish(OWN, own, room.own.size)
        self._agree(attempt, what)

    def _room(self, plan: CommitPlan, turn: int, memory: CommitMemory) -> _Room:
        if turn not in self._rooms:
            self._rooms[turn] = _Room.make(plan, turn, memory, self._ranks.world_size)
        return self._rooms[turn]

    def _exchange(self, plan: CommitPlan, room: _Room, told: Sequence[bytes]) -> tuple[bytes, ...]:
        """Send what only this node has to the rank that keeps it.

        Receives the copies that this rank keeps in place, and returns their descriptions.
        """
        nothing = [np.empty(0, np.uint8)] * self._ranks.world_size
        texts, contents, copies = [*nothing], [*nothing], [*nothing]
        packed = json.dumps([each.decode() for each in told]).encode()
        texts[plan.keeper] = np.frombuffer(bytearray(packed), np.uint8)
        contents[plan.keeper] = room.alone
        for (rank, _), memory in zip(plan.copies, room.copied, strict=True):
            copies[rank] = memory
        given = self._ranks.exchange(texts)
        self._ranks.exchange(contents, copies)
        pairs = [json.loads(given[rank].tobytes()) for rank, _ in plan.copies]
        return tuple(text.encode() for pair in pairs for text in pair)

    def _keys(self, here: Iterable[Key]) -> tuple[list[int], set[Key]]:
        """Return each rank's node, and the keys of commits of which any node has a part.

        If one node has no memory for commits, commits are disabled on all nodes.
        """
        newest = sorted({*here}, reverse=True)[:_MOST_KEYS]
        padded = [*newest, *[(0, 0)] * (_MOST_KEYS - len(newest))]
        node = int(self._node) if self._node.isdecimal() else 0
        own = [int(self._memory is not None), node, *(n for key in padded for n in key)]
        rows = self._ranks.numbers(own)
        if self._memory is not None and not all(row[0] for row in rows):
            warnings.warn(
                "nothing is committed: a node's agent has no memory", RuntimeWarning, stacklevel=4
            )
            self._memory = None
        keys = {(row[at], row[at + 1]) for row in rows for at in range(2, len(row), 2) if row[at]}
        return [row[1] for row in rows], keys

    def _parts_of_all(self, own: NodeParts, nodes: Sequence[int]) -> list[list[Part]]:
        """Return the parts in each node's memory, reported by the node's first rank only."""
        rank = self._ranks.rank
        is_first = nodes.index(nodes[rank]) == rank
        text = json.dumps([[*p.told, p.num_tensors] for p in own.parts] if is_first else [])
        return [
            [Part.of(told, num_tensors) for *told, num_tensors in json.loads(each)]
            for each in self._ranks.texts(text)
        ]

    def _fetching(
        self,
        whole: WholeCommit,
        own: NodeParts,
        told: Sequence[Sequence[Part]],
        nodes: Sequence[int],
    ) -> Fetching:
        on = {
            node: {name for part in parts for name in part.manifest.files}
            for node, parts in zip(nodes, told, strict=True)
            if parts
        }
        sizes = {name: each.num_bytes for name, each in whole.manifest.files.items()}
        holders = {
            name: [rank for rank, node in enumerate(nodes) if name in on.get(node, ())]
            for name in sizes
        }
        return Fetching(self._ranks, own.files, sizes, holders)

    def _restore(
        self, state: Mapping[str, Any], whole: WholeCommit, fetching: Fetching
    ) -> dict[str, Any]:
        """Restore the state.

        Raises CheckpointError on all ranks if one of them cannot; nothing has changed then if
        names, shapes or dtypes do not match.
        """
        what: str = "resume from the last commit"
        values: dict[str, Any] = {}
        landings, requests = landings_of(whole, ())
        with Attempt() as attempt:
            plan = Restoration(state, whole, self._ranks)
            landings, requests = landings_of(whole, plan.reads)
        self._agree(attempt, what)
        fetching.fetch(requests)
        with Attempt() as attempt:  # the program's own load_state_dict() may raise anything
            for landing in landings:
                landing.finish()
            values = plan.finish()
        self._agree(attempt, what)
        return values

    def _agree(self, attempt: Attempt, what: str) -> None:
        """Raise CheckpointError on all ranks if one has an error."""
        self._ranks.agree(f"cannot {what}", attempt.error)


class _Room(NamedTuple):
    """Holds one rank's memory for a commit, for one plan and turn."""

    files: tuple[Snapshot, Snapshot]
    copying: Copying
    told_own: bytes
    told_alone: bytes
    own: Bytes
    alone: Bytes
    """The part of `own` that is copied to another rank."""
    copies: Bytes
    copied: list[Bytes]
    """The parts of `copies`, by the ranks they come from."""

    @classmethod
    def make(cls, plan: CommitPlan, turn: int, memory: CommitMemory, world_size: int) -> _Room:
        """Allocate the memory. Raises CheckpointError if there is too little."""
        both = (plan.common, plan.alone)
        own, files = _make(both, OWN, turn, memory)
        copies, copied = _make([each for _, each in plan.copies], COPIES, turn, memory)
        return cls(
            (Snapshot(both[0], files[0]), Snapshot(both[1], files[1])),
            Copying(own),
            told_of(both, world_size),
            told_of([plan.alone], world_size),
            own,
            files[1],
            copies,
            copied,
        )

    def take(self, tensors: Mapping[str, Any]) -> None:
        """Copy the current values of the tensors."""
        files = (each.copies(tensors, ITEMSIZES) for each in self.files)
        self.copying.take(chain.from_iterable(files))


def _make(
    layouts: Sequence[FileLayout], kind: int, turn: int, memory: CommitMemory
) -> tuple[Bytes, list[Bytes]]:
    sizes = [each.num_bytes for each in layouts]
    starts, end = aligned_starts(sizes)
    content = memory.make(kind, turn, end)
    return content, [content[at : at + size] for at, size in zip(starts, sizes, strict=True)]
