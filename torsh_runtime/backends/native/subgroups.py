"""How ranks of one node meet for a further group: in the memory of the group that they are in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torsh_runtime.backends.base import BackendType, MeetingStore
from torsh_runtime.backends.board import SLICE, Board, give_up
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.errors import BackendUnavailable, PeerLost

_DIGEST_BYTES = 16
_TOPICS = ("backend", "member")
"""What a rank that meets the others in the store begins with."""


def meet_in_memory(
    pool: _native.SegmentPool,
    store: MeetingStore,
    name: str,
    rank: int,
    members: Sequence[int],
    num_bytes: int,
    timeout: float,
) -> _native.SegmentMemory | None:
    """The new group's segment of `num_bytes` bytes; None, on all its ranks, if it has to be made
    over the store, whose keys are the group's.

    rank: this one's in the group. members: the ranks of the pool, in the order of the group.
    Raises CommTimeout naming the ranks that did not come within `timeout` seconds, PeerLost, and
    what another rank gave up for.
    """
    board = Board(store, rank, timeout, BackendType.NATIVE)
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
    gathering = None
    try:
        gathering = _gathering(pool, digest, rank, members, num_bytes)
        while (is_here := gathering.wait(min(board.remaining(), SLICE))) is None:
            for peer in gathering.ended():
                raise PeerLost(peer, "init_process_group", 0)
            missing = gathering.missing()
            board.look_around()
            if board.has_passed():
                raise board.too_late(missing)
            if any(store.get(f"{topic}/{peer}") for topic in _TOPICS for peer in missing):
                return None
        if is_here:
            return gathering.take()
        board.look_around()  # somebody may have given up
        return None
    except BaseException as error:
        give_up(store, rank, error)
        raise
    finally:
        if gathering is not None:
            gathering.leave()


def _gathering(
    pool: _native.SegmentPool, digest: bytes, rank: int, members: Sequence[int], num_bytes: int
) -> _native.Gathering:
    try:
        return pool.gather(digest, members, num_bytes)
    except RuntimeError as error:  # there is no memory
        raise BackendUnavailable(
            f"the native backend on rank {rank}", f"The system refused: {error}"
        ) from error
