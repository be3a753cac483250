"""Connects ranks of one node for a further group, in the memory of a group they already have."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

from torsh_runtime.backends.base import BackendType, MeetingStore
from torsh_runtime.backends.bootstrap_store import SLICE, BootstrapStore, post_abort
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.errors import BackendUnavailable, PeerLost, StoreError

_DIGEST_BYTES = 16
_TOPICS = ("backend", "member")
"""First parts of the keys that a rank writes when it connects to the others over the store."""


def meet_in_memory(
    pool: _native.SegmentPool,
    store: MeetingStore,
    name: str,
    rank: int,
    members: Sequence[int],
    num_bytes: int,
    timeout: float,
) -> _native.SegmentMemory | None:
    """Return the new group's segment of `num_bytes` bytes.

    Returns None, on all its ranks, if the group has to be made over the store, whose keys are the
    group's. `rank` is this one's in the group, and `members` are the ranks of the pool, in the
    order of the group. Raises CommTimeout naming the ranks that did not come within `timeout`
    seconds, PeerLost, and the error for which a rank gave up.
    """
    board = BootstrapStore(store, rank, timeout, BackendType.NATIVE)
    digest = hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest()
    formation = None
    try:
        formation = _start(pool, digest, rank, members, num_bytes)
        while formation.wait(min(board.remaining(), SLICE)) is None:
            _look_around(board, store, formation)
            if any(_is_in_store(store, peer) for peer in formation.missing()):
                break
        formation.leave()
        memory = formation.take()
        if memory is None:
            board.look_around()  # somebody may have given up
        return memory
    except BaseException as error:
        if formation is not None:
            _abandon(formation, rank, len(members))
        post_abort(store, rank, error)
        raise


def _look_around(
    board: BootstrapStore, store: MeetingStore, formation: _native.GroupFormation
) -> None:
    """Raise what says that there is nothing to wait for any more."""
    for peer in formation.ended():
        raise PeerLost(peer, "init_process_group", 0)
    with suppress(StoreError):  # which tells nothing; the memory goes on
        board.look_around()
    if board.has_passed():
        raise board.too_late(formation.missing() or [0])  # the first one decides


def _is_in_store(store: MeetingStore, peer: int) -> bool:
    with suppress(StoreError):
        return any(store.get(f"{topic}/{peer}") for topic in _TOPICS)
    return False


def _abandon(formation: _native.GroupFormation, rank: int, ranks: int) -> None:
    """Leave, or if the others have gone on with this rank already have them find it gone."""
    formation.leave()
    memory = formation.take()
    if memory is not None:
        _native.abandon(memory, rank, ranks, rank)


def _start(
    pool: _native.SegmentPool, digest: bytes, rank: int, members: Sequence[int], num_bytes: int
) -> _native.GroupFormation:
    try:
        return pool.form_group(digest, members, num_bytes)
    except RuntimeError as error:  # there is no memory
        raise BackendUnavailable(
            f"the native backend on rank {rank}", f"The system refused: {error}"
        ) from error
