"""Memory that the ranks of a node share, for buffers that collectives use in place."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Mapping, Sequence

from torsh_runtime.backends import segment
from torsh_runtime.backends.meeting import Store
from torsh_runtime.backends.place import Place
from torsh_runtime.errors import BackendUnavailable, CommTimeout, StoreTimeout

PAGE = mmap.PAGESIZE
_MADV_POPULATE_WRITE = 23  # Linux 5.14


def map_shared(
    store: Store, rank: int, ranks: Sequence[int], stride: int, timeout: float
) -> mmap.mmap:
    """`stride` bytes for each of the ranks, which are those of this rank's node, in their order.

    This rank's own part is touched here first, so that it lies on this rank's NUMA node. The
    store's keys must be fresh. Raises CommTimeout naming the ranks that did not come within
    `timeout` seconds, BackendUnavailable without enough memory.
    """
    with segment.Offer() as offer:
        places = _exchange(store, rank, ranks, Place.here(offer.name, offer.token), timeout)
        descriptor = segment.share(offer, rank, places, stride * len(ranks), timeout)
    try:
        memory = mmap.mmap(descriptor, stride * len(ranks))
    finally:
        os.close(descriptor)
    _populate(memory, list(ranks).index(rank) * stride, stride)
    return memory


def _exchange(
    store: Store, rank: int, ranks: Sequence[int], own: Place, timeout: float
) -> Mapping[int, Place]:
    keys = {f"place/{peer}": peer for peer in ranks}
    store.put(f"place/{rank}", own.pack())
    try:
        found = store.wait(list(keys), timeout)
    except StoreTimeout:
        missing = [peer for key, peer in keys.items() if store.get(key) is None]
        raise CommTimeout("empty_shared", 0, timeout, missing) from None
    return {peer: Place.unpack(peer, found[key].value) for key, peer in keys.items()}


def _populate(memory: mmap.mmap, start: int, length: int) -> None:
    """Present now, so that a lack of memory is an error here and not a SIGBUS later."""
    try:
        memory.madvise(_MADV_POPULATE_WRITE, start, length)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise BackendUnavailable(
                f"shared memory of {length} bytes", f"The system refused: {error}"
            ) from None
        for at in range(start, start + length, PAGE):
            memory[at] = 0
