"""How the ranks of one node come to share a memory segment.

Their first rank makes an anonymous file (memfd), which has no name that could be left behind, and
hands its descriptor to each of the others over a local socket. The store carries only who is who.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import socket
import time
from collections.abc import Mapping
from typing import Self

from torsh_runtime.backends.place import Place
from torsh_runtime.backends.talks import Conversation, Refused, Talks
from torsh_runtime.errors import BackendUnavailable, CommError, CommTimeout, PeerLost

_TOKEN_BYTES = 32
_LOOK_AROUND = 0.1
"""Seconds between two looks at whether the peers still live, while the first rank waits."""


class Offer:
    """A listening socket where this rank would hand out a segment, and the token a peer must show.

    Every rank makes one before it knows whether it is its node's first; close it.
    """

    def __init__(self) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.name = f"torsh-segment-{secrets.token_hex(16)}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"\0{self.name}")
        self.listener.listen(1024)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()


def share(
    offer: Offer, rank: int, places: Mapping[int, Place], num_bytes: int, timeout: float
) -> int:
    """A descriptor, now the caller's, of the memory that the ranks of one node share.

    `places`: of these ranks, this one among them. Raises CommTimeout naming the ranks that did
    not come within `timeout` seconds, PeerLost if one has ended.
    """
    first = min(places)
    if rank != first:
        return _fetch(first, places[first], rank, timeout)
    descriptor = _create(num_bytes)
    try:
        others = {peer: place for peer, place in places.items() if peer != rank}
        _hand_out(offer, descriptor, others, timeout)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _create(num_bytes: int) -> int:
    descriptor = os.memfd_create("torsh-segment", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, num_bytes)
    except OSError as error:  # of a limit on the size of files (ulimit -f), say
        os.close(descriptor)
        raise BackendUnavailable(
            "the native backend", f"The system refused {num_bytes} bytes of shared memory: {error}."
        ) from error
    return descriptor


def _hand_out(offer: Offer, descriptor: int, places: Mapping[int, Place], timeout: float) -> None:
    deadline = time.monotonic() + timeout
    waiting = set(places)
    with Talks() as talks:
        talks.listen(offer.listener, lambda sock: _hand_over(sock, offer.token, descriptor))
        while waiting:
            if time.monotonic() > deadline:
                raise CommTimeout("init_process_group", 0, timeout, sorted(waiting))
            came = False
            for outcome in talks.turn(_LOOK_AROUND):
                outcome.sock.close()
                waiting.discard(outcome.result)
                came = True
            if not came:
                _check_alive(places, waiting)


def _hand_over(sock: socket.socket, token: bytes, descriptor: int) -> Conversation:
    """The descriptor for the token; the result is the peer's rank."""
    yield select.EPOLLIN
    greeting = sock.recv(_TOKEN_BYTES + 8)
    if not hmac.compare_digest(greeting[:_TOKEN_BYTES], token):
        raise Refused("it does not know the token")
    yield select.EPOLLOUT
    socket.send_fds(sock, [b"segment"], [descriptor])
    return int.from_bytes(greeting[_TOKEN_BYTES:], "little")


def _check_alive(places: Mapping[int, Place], waiting: set[int]) -> None:
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


def _fetch(first: int, place: Place, rank: int, timeout: float) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(max(timeout, 0.001))
        try:
            connection.connect(f"\0{place.offer}")
            connection.send(place.token + rank.to_bytes(8, "little"))
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            raise CommTimeout("init_process_group", 0, timeout, [first]) from None
        except OSError as error:
            raise _unreachable(first, place, error) from error
    if not descriptors:
        raise _unreachable(first, place, EOFError("it hung up"))
    return descriptors[0]


def _unreachable(first: int, place: Place, error: Exception) -> CommError:
    if _has_ended(place.pid):
        return PeerLost(first, "init_process_group", 0)
    return CommError(
        f"rank {first} (pid {place.pid}) cannot be reached for the shared segment: {error}. It has "
        f"given up meeting the others: look at its output."
    )
