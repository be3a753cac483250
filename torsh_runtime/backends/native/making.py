"""Creates the parts of a native backend once its ranks have connected."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from torsh_runtime.backends.base import MeetingStore
from torsh_runtime.backends.bootstrap_store import post_abort
from torsh_runtime.backends.native import arrays
from torsh_runtime.backends.native.bootstrap import Bootstrap
from torsh_runtime.backends.native.callbacks import Callbacks
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.failures import Peers, comm_error
from torsh_runtime.backends.native.node_file import NodeFile, may_map_all
from torsh_runtime.backends.native.settings import STRATEGIES, Settings
from torsh_runtime.backends.native.staging import stage_native
from torsh_runtime.backends.native.work import NativeWork
from torsh_runtime.backends.recorder import note_group, opened
from torsh_runtime.backends.work import COMPLETED
from torsh_runtime.errors import BackendUnavailable, ConfigError
from torsh_runtime.status import number_of, own_page


class Node(NamedTuple):
    """The part of a group that shares memory with this rank."""

    ranks: Sequence[int]
    pids: Sequence[int]
    neighbours: int
    """The number of ranks, of this group or those it was made from, on this machine."""
    pool: _native.SegmentPool | None
    """The memory in which the ranks create further groups."""
    places: Sequence[int]
    """Numbers of the ranks in the pool."""
    peers: Peers
    """The ranks of the whole group; the number of a rank of a different job is -1."""
    name: str
    """The name of the group."""


def settings_of(store: MeetingStore, rank: int) -> Settings:
    """Return this process's settings, reporting to the other ranks if they are wrong."""
    try:
        return Settings.from_environ(os.environ)
    except ConfigError as error:
        post_abort(store, rank, error)
        raise


def abandon(
    store: MeetingStore, meeting: Bootstrap, local: Sequence[int], error: BaseException
) -> None:
    """Tell the ranks that wait for this one why it does not come, though it has met them."""
    post_abort(store, meeting.rank, error)
    with suppress(RuntimeError):  # those of other nodes see that its connections end
        _native.abandon(meeting.file, local.index(meeting.rank), len(local), meeting.rank)


def mapped(meeting: Bootstrap, file: NodeFile) -> _native.SegmentMemory:
    """Return the memory of the group's collectives. Raises BackendUnavailable."""
    with _refusals(meeting.rank):
        return _native.map_segment(meeting.file, file.segment_bytes)


def pool_of(meeting: Bootstrap, local: Sequence[int], file: NodeFile) -> _native.SegmentPool | None:
    """Return memory for further groups.

    Returns None if the node has one rank, if the system has refused so large a file or refuses to
    map it, or if this process may not map it.
    """
    has_room = os.fstat(meeting.file).st_size >= file.pool.end(len(local))
    if len(local) == 1 or not has_room or not may_map_all():
        return None
    with suppress(RuntimeError):
        place = local.index(meeting.rank)
        return _native.SegmentPool(meeting.file, *file.pool, place, meeting.pids)
    return None


def arrays_of(
    meeting: Bootstrap, local: Sequence[int], file: NodeFile
) -> _native.SharedArrays | None:
    """Return memory for numpy's large arrays, or None if they cannot be placed there."""
    return arrays.share(meeting.file, file.arrays, local, meeting.rank, meeting.pids)


def group_of(
    meeting: Bootstrap,
    memory: _native.SegmentMemory,
    world_size: int,
    settings: Settings,
    name: str,
    callbacks: Callbacks,
    peers: Peers,
) -> _native.Group:
    """Return the compiled group, over the connections and the memory that the ranks agreed on.

    Raises BackendUnavailable.
    """
    number, page, recording = number_of(name), own_page(), opened()
    note_group(name, world_size, peers.numbers)
    local = next(node for node in meeting.nodes if meeting.rank in node)
    links = meeting.take_links()
    with _refusals(meeting.rank):
        return _native.Group(
            rank=meeting.rank,
            nodes=meeting.nodes,
            segment=memory,
            tuning=settings.tuning.tuning(len(local)),
            pids=meeting.pids,
            neighbours=meeting.neighbours,
            links=[links.get(peer, ()) for peer in range(world_size)],
            heartbeat=settings.heartbeat,
            strategy=STRATEGIES.index(settings.strategy),
            limits=settings.tuning.limits(),
            record=page.next_record(number) if page is not None else None,
            recording=recording.memory if recording is not None else None,
            place=recording.next_place() if recording is not None else 0,
            number=number,
            job_ranks=peers.numbers,
            stage=stage_native,
            failure=partial(comm_error, peers),
            complete=COMPLETED,
            begun=partial(NativeWork, callbacks=callbacks),
        )


def peers_of(meeting: Bootstrap) -> Peers:
    """Return the ranks that have connected."""
    local = next(node for node in meeting.nodes if meeting.rank in node)
    return Peers(dict(zip(local, meeting.pids, strict=True)), meeting.numbers)


@contextmanager
def _refusals(rank: int) -> Iterator[None]:
    """Raise BackendUnavailable if the system refuses memory or descriptors or is too old."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise BackendUnavailable(
            f"the native backend on rank {rank}", f"The system refused: {error}"
        ) from error
