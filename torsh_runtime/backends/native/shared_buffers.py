"""Memory that the ranks of a node share, for buffers that collectives use in place."""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Mapping, Sequence
from enum import IntEnum

import msgpack
import numpy as np

from torsh_runtime.backends.base import Backend
from torsh_runtime.backends.native import segment
from torsh_runtime.backends.native.host_info import HostInfo, Terms
from torsh_runtime.backends.spares import Buffer, Spares, holder_of
from torsh_runtime.errors import BackendUnavailable, CommError, ConfigError

_PAGE = mmap.PAGESIZE
_LENGTH = struct.Struct("H")
_CARD_BYTES = 1024
"""Bytes that each rank sends to the others; shorter messages are padded."""
_MADV_POPULATE_WRITE = 23  # Linux 5.14


class _State(IntEnum):
    """Lists how far a rank has come; ranks in the worst state are to blame."""

    READY = 0
    MISSED = 1
    """A different rank could not hand it the memory."""
    REFUSED = 2
    """The system did not give it the memory."""


class SharedBuffers:
    """Carries out one agreement of a group's ranks on memory, by collectives of the group."""

    def __init__(
        self,
        backend: Backend,
        local: Sequence[int],
        num_bytes: int,
        timeout: float,
        spares: Spares | None = None,
    ) -> None:
        """Prepare memory of `num_bytes` bytes for each rank in `local`.

        `local` are the ranks of this rank's node, ascending. The whole agreement takes at most
        `timeout` seconds. `spares`: memory that may be taken; None for memory that is not to be
        taken later.
        """
        self._backend = backend
        self._local = local
        self._num_bytes = num_bytes
        self._deadline = time.monotonic() + timeout
        self.stride = -(-max(num_bytes, 1) // _PAGE) * _PAGE
        """Bytes from one rank's memory to the next one's."""
        self.start = list(local).index(backend.rank) * self.stride
        """Where this rank's begins."""
        self._spares = Spares() if spares is None else spares
        self._spare = self._spares.like(local, self.start, num_bytes)
        self._holder: int | None = None
        """The rank that hands out memory that the ranks have had before."""

    def remaining(self) -> float:
        """Return the seconds until the deadline, always more than 0."""
        return max(self._deadline - time.monotonic(), 0.001)

    def map(self) -> Buffer:
        """Map `stride` bytes for each of the node's ranks, in their order.

        This rank's own part is touched here first, so that it is placed on this rank's NUMA node.
        Raises an error on all ranks of the group if on any: CommError, BackendUnavailable naming
        ranks without enough memory, ConfigError if they do not want the same number of bytes.
        """
        try:
            with segment.Offer() as offer:
                memory = self._get(offer, self._meet(offer))
        except BackendUnavailable:
            self._tell(_State.REFUSED)
            raise
        except CommError:
            self._tell(_State.MISSED)
            raise
        self._tell(_State.READY)
        return memory

    def _meet(self, offer: segment.Offer) -> Mapping[int, HostInfo]:
        own = HostInfo.here(offer.name, offer.token, Terms())
        spare = self._spares.number_of(self._spare)
        card = msgpack.packb([self._num_bytes, own.pack(), spare])
        told = [
            msgpack.unpackb(each[_LENGTH.size :][: _LENGTH.unpack_from(each)[0]])
            for each in self._gather((_LENGTH.pack(len(card)) + card).ljust(_CARD_BYTES, b"\0"))
        ]
        for rank, (num_bytes, *_) in enumerate(told):
            if num_bytes != told[0][0]:
                raise ConfigError(
                    f"rank {rank} asked for {num_bytes} bytes of shared memory and rank 0 for "
                    f"{told[0][0]}: all ranks of a group must ask for as many at the same time"
                )
        self._holder = holder_of([told[rank][2] for rank in self._local], self._local)
        return {rank: HostInfo.unpack(rank, told[rank][1]) for rank in self._local}

    def _get(self, offer: segment.Offer, places: Mapping[int, HostInfo]) -> Buffer:
        total = self.stride * len(self._local)
        if total > os.sysconf("SC_PHYS_PAGES") * _PAGE:  # or the kernel would kill for it
            raise _refused(total, "this machine does not have so much memory")
        try:
            known = None
            if self._holder is not None:
                own = None if self._spare is None else self._spare.descriptor
                known = segment.Known(self._holder, own)
            descriptor = segment.share(
                offer, self._backend.rank, places, (total,), self.remaining(), known=known
            )
            try:
                memory = mmap.mmap(descriptor, total)
            except BaseException:
                os.close(descriptor)
                raise
            made = Buffer(memory, descriptor, self._local, self.start, self._num_bytes)
            _populate(memory, self.start, self.stride)
        except CommError:
            raise
        except (OSError, ValueError) as error:
            raise _refused(total, str(error)) from error
        return made

    def _tell(self, own: _State) -> None:
        """Tell the others how far this rank has come; return unless one of them is worse off."""
        states = [said[0] for said in self._gather(bytes([own]))]
        worst = max(states)
        if worst > own:
            ranks = ", ".join(str(rank) for rank, state in enumerate(states) if state == worst)
            raise BackendUnavailable(
                f"shared memory of {self._num_bytes} bytes on rank(s) {ranks}",
                "Their own errors say why.",
            )

    def _gather(self, own: bytes) -> list[bytes]:
        """Return the bytes of each rank of the group; all pass equally many."""
        said = np.empty(len(own) * self._backend.world_size, np.uint8)
        self._backend.all_gather(said, np.frombuffer(own, np.uint8), self.remaining())
        return [bytes(part) for part in np.split(said, self._backend.world_size)]


def _refused(num_bytes: int, why: str) -> BackendUnavailable:
    return BackendUnavailable(f"shared memory of {num_bytes} bytes", f"The system refused: {why}.")


def _populate(memory: mmap.mmap, start: int, length: int) -> None:
    """Present now, so that a lack of memory is an error here and not a SIGBUS later."""
    try:
        memory.madvise(_MADV_POPULATE_WRITE, start, length)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        for at in range(start, start + length, _PAGE):
            memory[at] = 0
