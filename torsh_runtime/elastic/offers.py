"""Finds what the memories of all nodes have of the ranks' shards, and transfers it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.memory import SLOTS
from torsh_runtime.elastic.neighbours import packed, unpacked
from torsh_runtime.elastic.shard_plan import NOTHING, Holding
from torsh_runtime.elastic.versions import ALIKE, GRADIENTS, STATE, Key, Version, version_of

Bytes = NDArray[np.uint8]


class Offers:
    """Represents what all ranks have found in their slots. All make the same calls in the same
    order."""

    def __init__(self, ranks: Ranks, own: Mapping[Key, Version], places: Sequence[int]) -> None:
        """Tell the others what this rank has found, and hear what they have.

        places: for each rank a number that it has in common with those that have the same parts.
        """
        self._ranks, self._own, self._places = ranks, own, places
        row = np.full((SLOTS, len(Key._fields)), NOTHING, np.int64)
        row[: len(own)] = [*own] or row[:0]
        told = np.array(ranks.numbers(row.reshape(-1).tolist())).reshape(-1, *row.shape)
        self._by_rank = [
            {Key(*each) for each in rows if each[0] != NOTHING} for rows in told.tolist()
        ]
        self.every = set[Key]().union(*self._by_rank)
        """What there is, of all ranks."""

    def numbers(self, kind: int, rank: int | None = None) -> tuple[int, ...]:
        """Return the numbers of what there is of a kind, of all ranks or for one of them."""
        found = (each for each in self.every if each.kind == kind)
        return tuple(sorted({each.number for each in found if self._is_for(rank, each)}))

    def key(self, kind: int, rank: int, number: int) -> Key:
        """Return what a rank takes: its own, if that is there."""
        found = [each for each in self.every if (each.kind, each.number) == (kind, number)]
        fit = [each for each in found if self._is_for(rank, each)]
        return min(fit, key=lambda each: (each.owner != rank, each))

    def holdings(self, live: Iterable[int]) -> list[Holding]:
        """Return what there is of each rank. live: the states that the processes have whole."""
        return [
            Holding(each, self.numbers(STATE, rank), self.numbers(GRADIENTS, rank))
            for rank, each in enumerate(live)
        ]

    def fetch(self, needs: Mapping[int, Key]) -> Version | None:
        """Return what this rank needs; None if it needs nothing. needs: what each rank needs.

        Raises CheckpointError if it was damaged on its way.
        """
        rank = self._ranks.rank
        sent = [np.empty(0, np.uint8) for _ in range(self._ranks.world_size)]
        for other, key in needs.items():
            if other != rank and self._source(other, key) == rank:
                sent[other] = _as_bytes(self._own[key])
        received = self._ranks.exchange(sent)
        if rank not in needs:
            return None
        source = self._source(rank, needs[rank])
        return self._own[needs[rank]] if source == rank else _from_bytes(received[source])

    def alike(self, number: int) -> Key:
        """Return what there is of the parts that all ranks have alike, before this step."""
        return min(each for each in self.every if (each.kind, each.number) == (ALIKE, number))

    def _is_for(self, rank: int | None, key: Key) -> bool:
        if rank is None:
            return True
        is_of_now = key.world == len(self._places)
        return is_of_now and self._places[key.owner] == self._places[rank]

    def holders(self, key: Key) -> list[int]:
        """Return the ranks that have this in their slots."""
        return [rank for rank, keys in enumerate(self._by_rank) if key in keys]

    def gives(self, key: Key) -> bool:
        """Return whether this rank is the first one that has it."""
        return self.holders(key)[0] == self._ranks.rank

    def _source(self, rank: int, key: Key) -> int:
        """Return the rank that gives it: the one that needs it, if it has it in its own memory."""
        having = self.holders(key)
        return rank if rank in having else having[0]


def _as_bytes(version: Version) -> Bytes:
    text = packed(version.commit)
    length = np.frombuffer(len(text).to_bytes(8, "little"), np.uint8)
    return np.concatenate([length, np.frombuffer(text, np.uint8), version.content])


def _from_bytes(sent: Bytes) -> Version:
    end = 8 + int.from_bytes(sent[:8].tobytes(), "little")
    return version_of(unpacked(sent[8:end].tobytes()), sent[end:])
