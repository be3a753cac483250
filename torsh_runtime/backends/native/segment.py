"""Shares a memory segment between the ranks of one node.

Their first rank creates an anonymous file (memfd), which has no name that could be left behind, and
hands its descriptor to each of the others over a local socket. The store carries only the
identities of the ranks, and is not trusted: the kernel tells both sides that the peer is the
process that the store names, and of the same user, and both prove that they know the token, the
job's secret, and the same processes as the node's ranks. The file's size is sealed before any rank
gets it, so that nobody can take memory away from the others, and every receiver checks that.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import select
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from torsh_runtime.backends.native.host_info import TOKEN_BYTES, HostInfo
from torsh_runtime.connections.multiplexer import (
    ConnectionMultiplexer,
    ProtocolCoroutine,
    Refused,
    check_user,
)
from torsh_runtime.connections.peer import foreign_uid, pid_of_peer, user
from torsh_runtime.errors import BackendUnavailable, CommError, CommTimeout, PeerLost
from torsh_runtime.store.keys import KEY_BYTES, derive

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_RANK_BYTES = 8
_FULL_PAUSE = 0.005
"""Seconds between attempts while too many wait at the first rank's socket."""
_LOOK_AROUND = 0.1
"""Seconds between two looks at whether the peers still live, while the first rank waits."""


class Offer:
    """A listening socket where this rank would hand out a segment, and the token a peer must know.

    Every rank makes one before it knows whether it is its node's first; close it.
    """

    def __init__(self) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.name = f"torsh-segment-{secrets.token_hex(16)}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"\0{self.name}")
        self.listener.listen(1024)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()


class Known(NamedTuple):
    """Represents memory that a rank, the holder, has handed out before."""

    holder: int
    descriptor: int | None
    """The descriptor of this rank, which keeps it; None if it has none."""


def share(
    offer: Offer,
    rank: int,
    places: Mapping[int, HostInfo],
    sizes: Sequence[int],
    timeout: float,
    secret: bytes = b"",
    known: Known | None = None,
) -> int:
    """Return a descriptor of the memory that the ranks of one node share. The caller owns it.

    `places` are those of these ranks, including this one. `sizes` are those that the memory may
    have, in bytes, the same on all ranks; it gets the first of the first rank's sizes that the
    system allows. `secret` is the job's, if it has one. `known` is memory to share instead of new
    memory, the same on all ranks. Raises CommTimeout naming the ranks that
    did not come within `timeout` seconds, PeerLost if one has ended, CommError if the memory comes
    from a stranger or is not what it should be.
    """
    first = min(places) if known is None else known.holder
    proofs = _Proofs(secret, places, first)
    deadline = time.monotonic() + timeout
    if rank != first:
        return _fetch(proofs, rank, sizes, deadline, timeout)
    own = None if known is None else known.descriptor
    descriptor = _create(sizes) if own is None else os.dup(own)
    try:
        _hand_out(offer, descriptor, proofs, deadline, timeout)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class _Proofs:
    """Makes the proofs that the ranks of a node present when the first hands out its memory."""

    def __init__(self, secret: bytes, places: Mapping[int, HostInfo], first: int) -> None:
        self.places = places
        self.first = first
        self._key = secret + places[self.first].token

    def of(self, role: str, rank: int) -> bytes:
        """Return the proof of the first rank ("server") or the other ("client") when `rank`
        fetches.
        """
        roster = " ".join(f"{peer}:{place.pid}" for peer, place in sorted(self.places.items()))
        offer = self.places[self.first].offer
        return derive(self._key, "segment", role, offer, str(rank), roster)


def _create(sizes: Sequence[int]) -> int:
    descriptor = os.memfd_create("torsh-segment", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _resize(descriptor, sizes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:  # of a limit on the size of files (ulimit -f), say
        os.close(descriptor)
        raise BackendUnavailable(
            "the native backend",
            f"The system refused {min(sizes)} bytes of shared memory: {error}.",
        ) from error
    return descriptor


def _resize(descriptor: int, sizes: Sequence[int]) -> None:
    """Resize the file to the first of `sizes` that the system allows.

    Raises OSError if it allows none.
    """
    *better, last = sizes
    for size in better:
        with suppress(OSError):
            return os.ftruncate(descriptor, size)
    return os.ftruncate(descriptor, last)


def _hand_out(
    offer: Offer, descriptor: int, proofs: _Proofs, deadline: float, timeout: float
) -> None:
    waiting, look_around_at = set(proofs.places) - {proofs.first}, 0.0
    with ConnectionMultiplexer() as conversations:
        conversations.listen(offer.listener, lambda sock: _hand_over(sock, proofs, descriptor))
        while waiting:
            if time.monotonic() > deadline:
                raise CommTimeout("init_process_group", 0, timeout, sorted(waiting))
            for outcome in conversations.turn(_LOOK_AROUND):
                outcome.sock.close()
                waiting.discard(outcome.result)
            if time.monotonic() >= look_around_at:  # even while strangers come all the time
                _check_alive(proofs.places, waiting)
                look_around_at = time.monotonic() + _LOOK_AROUND


def _hand_over(sock: socket.socket, proofs: _Proofs, descriptor: int) -> ProtocolCoroutine:
    """Send the descriptor in return for the right proof; the result is the peer's rank."""
    check_user(sock, b"")
    yield select.EPOLLIN
    greeting = sock.recv(KEY_BYTES + _RANK_BYTES + 1)
    rank = int.from_bytes(greeting[KEY_BYTES:], "little")
    if not hmac.compare_digest(greeting[:KEY_BYTES], proofs.of("client", rank)):
        raise Refused("it does not know the token, or means other processes")
    if rank == proofs.first or rank not in proofs.places:
        raise Refused("it is none of the node's ranks")
    if pid_of_peer(sock) != proofs.places[rank].pid:
        raise Refused("it is another process than the rank that it names")
    yield select.EPOLLOUT
    socket.send_fds(sock, [proofs.of("server", rank)], [descriptor])
    return rank


def _check_alive(places: Mapping[int, HostInfo], waiting: set[int]) -> None:
    for peer in sorted(waiting):
        if _has_ended(places[peer].pid):
            raise PeerLost(peer, "init_process_group", 0)


def _has_ended(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 0)[0])
    finally:
        os.close(process)


def _fetch(
    proofs: _Proofs, rank: int, sizes: Sequence[int], deadline: float, timeout: float
) -> int:
    first, place = proofs.first, proofs.places[proofs.first]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            _connect(connection, place, deadline)
            connection.settimeout(_remaining(deadline))
            connection.send(proofs.of("client", rank) + rank.to_bytes(_RANK_BYTES, "little"))
            word, descriptors, _, _ = socket.recv_fds(
                connection, KEY_BYTES + 1, 1, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            raise CommTimeout("init_process_group", 0, timeout, [first]) from None
        except (OSError, Refused) as error:
            raise _unreachable(first, place, error) from error
    if not descriptors:
        raise _unreachable(first, place, EOFError("it hung up"))
    try:
        if not hmac.compare_digest(word, proofs.of("server", rank)):
            raise CommError(f"what rank {first} is said to be gave memory without the right proof")
        _check_memory(descriptors[0], sizes)
    except BaseException:
        os.close(descriptors[0])
        raise
    return descriptors[0]


def _connect(connection: socket.socket, place: HostInfo, deadline: float) -> None:
    """Connect to the place's process and no other. Refused when another one is there."""
    while True:
        connection.settimeout(_remaining(deadline))
        try:
            connection.connect(f"\0{place.offer}")
            break
        except BlockingIOError:
            time.sleep(_FULL_PAUSE)
    uid = foreign_uid(connection, b"")
    if uid is not None:
        raise Refused(f"it is served by {user(uid)}, and this rank is run by {user(os.geteuid())}")
    if pid_of_peer(connection) != place.pid:
        raise Refused(f"it is process {pid_of_peer(connection)}")


def _remaining(deadline: float) -> float:
    """Return the seconds until the deadline. Raises TimeoutError once it has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


def _check_memory(descriptor: int, sizes: Sequence[int]) -> None:
    """Raise CommError unless the file has one of these sizes and is sealed.

    Otherwise it could vanish while in use.
    """
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # no memfd
        sealed = False
    size = os.fstat(descriptor).st_size
    if not sealed or size not in sizes:
        raise CommError(
            f"the shared memory received has {size} bytes{'' if sealed else ', not sealed'}, and "
            f"{' or '.join(map(str, sizes))} that nobody can take away are needed. Install the "
            f"same version of torsh_runtime for all ranks."
        )


def _unreachable(first: int, place: HostInfo, error: Exception) -> CommError:
    if _has_ended(place.pid):
        return PeerLost(first, "init_process_group", 0)
    return CommError(
        f"rank {first} (pid {place.pid}) cannot be reached for the shared segment: {error}. It has "
        f"given up meeting the others: look at its output."
    )
