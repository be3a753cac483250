"""Groups of the compiled library, made without a meeting: ranks of one process."""

from __future__ import annotations

import os
from functools import partial

from torsh_runtime.backends.native import _native
from torsh_runtime.backends.native.callbacks import Callbacks
from torsh_runtime.backends.native.failures import Peers, comm_error
from torsh_runtime.backends.native.staging import stage_native
from torsh_runtime.backends.native.tuning import TuningFile
from torsh_runtime.backends.native.work import NativeWork
from torsh_runtime.backends.work import COMPLETED

TUNING = TuningFile({}, {})


def segment(ranks: int) -> int:
    """A descriptor of memory for so many ranks."""
    descriptor = os.memfd_create("torsh-test")
    os.ftruncate(descriptor, _native.segment_bytes(ranks, TUNING.tuning(ranks)))
    return descriptor


def native_group(
    descriptor: int,
    rank: int,
    pids: list[int],
    record: memoryview | None,
    number: int = 0,
    recording: memoryview | None = None,
) -> _native.Group:
    """One rank's end of a group on shared memory."""
    ranks = len(pids)
    return _native.Group(
        rank=rank,
        nodes=[list(range(ranks))],
        segment=_native.map_segment(descriptor, _native.segment_bytes(ranks, TUNING.tuning(ranks))),
        tuning=TUNING.tuning(ranks),
        pids=pids,
        neighbours=ranks,
        links=[()] * ranks,
        heartbeat=10.0,
        strategy=0,
        limits=TUNING.limits(),
        record=record,
        recording=recording,
        place=0,
        number=number,
        stage=stage_native,
        failure=partial(comm_error, Peers({}, ())),
        complete=COMPLETED,
        begun=partial(NativeWork, callbacks=Callbacks()),
    )
