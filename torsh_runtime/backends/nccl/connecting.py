"""Makes NCCL's communicators: the rendezvous of the ranks, and its deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from torsh_runtime.backends.library.failure_notifications import Call
from torsh_runtime.backends.nccl.library import Communicator, Device, Nccl
from torsh_runtime.backends.nccl.loading import library_call
from torsh_runtime.backends.nccl.streams import Captures
from torsh_runtime.errors import CommTimeout, StoreError, StoreTimeout
from torsh_runtime.store.client import StoreClient

SLICE = 0.25
"""Seconds between two looks at the other ranks' notes while ranks are awaited."""
_PATIENCE = 5.0
"""Seconds within which the store answers, or is asked again until the deadline."""
_AWAITED = " to make NCCL's communicator, in the first operation on GPUs"

T = TypeVar("T")
Look = Callable[[], object]
"""A function that raises why the group has ended, if it has."""


class Place(NamedTuple):
    """Says which ranks of a group a communicator has, and where they meet."""

    store: StoreClient
    rank: int
    """The rank of this process in the group."""
    ranks: Sequence[int]
    """The ranks of the communicator, by their numbers in the group."""

    def pair(self, peer: int) -> Place:
        """Return the place of this rank and one other of the group."""
        ranks = sorted((self.rank, peer))
        return Place(self.store.scoped(f"pair/{ranks[0]}-{ranks[1]}/"), self.rank, ranks)


class Wait:
    """Waits for ranks until a deadline, and looks now and then whether they still come."""

    def __init__(self, call: Call, timeout: float, look: Look) -> None:
        self._call = call
        self._timeout = timeout
        self._look = look
        self._deadline = time.monotonic() + timeout

    @property
    def left(self) -> float:
        """Return the seconds until the deadline, always more than 0."""
        return max(self._deadline - time.monotonic(), 0.001)

    def slices(self, missing: Callable[[], list[int]], detail: str = "") -> float:
        """Return the seconds to wait before the next look, after having looked.

        Raises what `look` raises, and CommTimeout with what `missing` returns at the deadline.
        """
        self._look()
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise CommTimeout(self._call.op, 0, self._timeout, missing(), detail)
        return min(left, SLICE)


def communicator(
    place: Place, nccl: Nccl, wait: Wait, device: Device, adopt: Callable[[Communicator], T]
) -> T:
    """Make a communicator with the other ranks, and return what `adopt` makes of it.

    It may be given up before: `adopt` must see then that nobody needs the communicator. It is
    called by a thread whose current device is `device`; that of the calling thread does
    not change. Raises CommTimeout, which names the ranks that did not come, and what NCCL raises.
    """
    own = bytes(library_call(nccl.get_unique_id)) if place.rank == place.ranks[0] else b""
    meeting = nccl.UniqueId.from_bytes(_exchange(place, own, wait)[0])

    def initialise() -> T:
        Captures().tolerate()  # of other threads: NCCL allocates memory
        library_call(device.set_current)
        number = place.ranks.index(place.rank)
        made = nccl.Communicator.init(len(place.ranks), number, meeting)
        return adopt(made)

    return in_thread(initialise, wait, ": NCCL is still connecting")


def _exchange(place: Place, own: bytes, wait: Wait) -> list[bytes]:
    """Publish `own` and return what each rank of the group has published."""
    place.store.within(wait.left).put(f"communicator/{place.rank}", own)
    store = place.store.within(_PATIENCE)
    keys = {f"communicator/{rank}": rank for rank in place.ranks}

    def missing() -> list[int]:
        with suppress(StoreError):
            found = {entry.key for entry in store.list("communicator/").items}
            return [rank for key, rank in keys.items() if key not in found]
        return []

    while True:
        seconds = wait.slices(missing, _AWAITED)
        with suppress(StoreTimeout):
            found = store.wait([*keys], seconds)
            return [found[key].value for key in keys]


def in_thread(work: Callable[[], T], wait: Wait, detail: str) -> T:
    """Return the result of work that blocks, or raise what it raises.

    At the deadline it raises CommTimeout with `detail`, and the work goes on.
    """
    outcome: list[T | Exception] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="torsh-nccl-connect", daemon=True)
    thread.start()
    while not outcome:
        thread.join(wait.slices(list, detail))
    result = outcome[0]
    if isinstance(result, Exception):
        raise result
    return result
