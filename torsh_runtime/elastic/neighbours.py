"""Copies what ranks keep in memory to the memory of the next node, so that any one node may be
lost."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.memory import TURNS, Commit, CommitMemory

Bytes = NDArray[np.uint8]


def ring(nodes: Sequence[int], rank: int) -> tuple[int, int] | None:
    """Return the rank that keeps the copies of this one, on the next node, and the rank whose
    copies this one keeps. None with a single node, and if nodes have different numbers of ranks.

    nodes: the node of each rank.
    """
    order = [*dict.fromkeys(nodes)]
    members = [[r for r, each in enumerate(nodes) if each == node] for node in order]
    if len(order) < 2 or len({*map(len, members)}) > 1:
        return None
    own = order.index(nodes[rank])
    place = members[own].index(rank)
    return members[(own + 1) % len(order)][place], members[own - 1][place]


class Neighbours:
    """Sends copies to the next node, and keeps those that come from the node before. All ranks make
    the same calls in the same order."""

    def __init__(self, ranks: Ranks, memory: CommitMemory, keeper: int, kept: int) -> None:
        """Prepare to send to the rank `keeper`, and to keep what the rank `kept` sends."""
        self._ranks, self._memory = ranks, memory
        self._keeper, self._kept = keeper, kept
        self._rooms: dict[tuple[int, int], Bytes] = {}
        """Memory by kind of slot and turn."""

    def exchange(self, kind: int, commit: Commit, content: Bytes) -> None:
        """Send what one of this rank's slots contains, and keep what comes in slots of this kind.

        Raises CommError if a rank is lost, and CheckpointError if memory is too short.
        """
        header = np.frombuffer(bytearray(packed(commit)), np.uint8)
        size, num_bytes = self._ranks.numbers([header.size, content.size])[self._kept]
        turn = commit.sequence % TURNS
        self._memory.begin(turn, (kind,))
        room, text = self._room(kind, turn, num_bytes), np.empty(size, np.uint8)
        self._send(header, text)
        self._send(content, room)
        self._memory.finish(kind, unpacked(text.tobytes()), room.size)

    def _send(self, own: Bytes, room: Bytes) -> None:
        sent = [np.empty(0, np.uint8) for _ in range(self._ranks.world_size)]
        received = [*sent]
        sent[self._keeper], received[self._kept] = own, room
        self._ranks.exchange(sent, received)

    def _room(self, kind: int, turn: int, num_bytes: int) -> Bytes:
        room = self._rooms.get((kind, turn))
        if room is None or room.size != num_bytes:
            room = self._rooms[kind, turn] = self._memory.make(kind, turn, num_bytes)
        return room


def packed(commit: Commit) -> bytes:
    """Return what describes a slot's content as bytes."""
    told = [each.decode("latin-1") for each in commit.told]
    return json.dumps([commit.sequence, commit.token, commit.num_tensors, told]).encode()


def unpacked(text: bytes) -> Commit:
    """Return what packed() was given."""
    sequence, token, num_tensors, told = json.loads(text)
    return Commit(sequence, token, num_tensors, tuple(each.encode("latin-1") for each in told))
