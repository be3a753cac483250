"""How the ranks of one node come to share a memory segment.

Rank 0 makes an anonymous file (memfd), which has no name that could be left behind, and hands
its descriptor to each peer over a local socket. The store carries only who is who.
"""

from __future__ import annotations

import hmac
import os
import secrets
import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from torsh_runtime.backends.library import _native
from torsh_runtime.errors import (
    BackendUnavailable,
    CommError,
    CommTimeout,
    PeerLost,
    StoreTimeout,
)
from torsh_runtime.status import own_page
from torsh_runtime.store.client import StoreClient

_TOKEN_BYTES = 32
_LOOK_AROUND = 0.1
"""Seconds between two looks at whether the peers still live, while rank 0 waits for them."""
_WHOLE_LIMIT = 4 << 10
"""Bytes up to which an all_reduce takes one round; measured on 2 and 4 ranks."""
_BLOCKS_BYTES = 1 << 20
"""Bytes of all ranks' blocks together: what passes through the slots at a time should stay in
the processors' own caches. Measured with blocks of 128 KiB to 4 MiB, 2 and 4 ranks."""
_BLOCK_LIMITS = (64 << 10, 512 << 10)
"""The least and the most bytes of one rank's block."""


def join(store: StoreClient, rank: int, world_size: int, timeout: float) -> _native.Group:
    """Share a segment with the other ranks. The store's keys must be this group's own."""
    if world_size > _native.MAX_RANKS:
        raise BackendUnavailable(
            f"the native backend with {world_size} ranks",
            f"It links at most {_native.MAX_RANKS} ranks of one node.",
        )
    deadline = time.monotonic() + timeout
    with _offer(rank) as offer:
        store.put(f"member/{rank}", msgpack.packb(_introduce(offer)))
        members = _meet(store, world_size, timeout)
        _check_same_machine(rank, members)
        tuning = _tuning(world_size)
        if offer is not None:
            descriptor = _create(_native.segment_bytes(world_size, tuning))
        else:
            descriptor = _fetch(members[0], rank, deadline, timeout)
        try:
            if offer is not None:
                _hand_out(offer, descriptor, members, deadline, timeout)
            pids = [members[peer]["pid"] for peer in range(world_size)]
            return _map(descriptor, rank, world_size, tuning, pids)
        finally:
            os.close(descriptor)


def _map(
    descriptor: int, rank: int, world_size: int, tuning: _native.Tuning, pids: list[int]
) -> _native.Group:
    page = own_page()
    record, number = page.next_record() if page is not None else (None, 0)
    try:
        return _native.Group(descriptor, rank, world_size, tuning, pids, record, number)
    except (RuntimeError, ValueError) as error:  # no memory, no descriptors, an old kernel
        raise BackendUnavailable(
            f"the native backend on rank {rank}", f"The system refused: {error}"
        ) from error


def _tuning(world_size: int) -> _native.Tuning:
    least, most = _BLOCK_LIMITS
    block_bytes = min(most, max(least, _BLOCKS_BYTES // world_size // 4096 * 4096))
    return _native.Tuning(_WHOLE_LIMIT, block_bytes)


class _Offer:
    """Rank 0's listening socket and the token a peer must show."""

    def __init__(self) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self.name = f"torsh-segment-{secrets.token_hex(16)}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(f"\0{self.name}")
        self.listener.listen(128)


@contextmanager
def _offer(rank: int) -> Iterator[_Offer | None]:
    if rank != 0:
        yield None
        return
    offer = _Offer()
    with offer.listener:
        yield offer


def _introduce(offer: _Offer | None) -> dict[str, Any]:
    account: dict[str, Any] = {
        "pid": os.getpid(),
        "machine": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
        "host": socket.gethostname(),
    }
    if offer is not None:
        account |= {"name": offer.name, "token": offer.token}
    return account


def _meet(store: StoreClient, world_size: int, timeout: float) -> Mapping[int, dict[str, Any]]:
    keys = {f"member/{peer}": peer for peer in range(world_size)}
    try:
        found = store.wait(list(keys), timeout)
    except StoreTimeout:
        missing = [peer for key, peer in keys.items() if store.get(key) is None]
        raise CommTimeout("init_process_group", 0, timeout, missing) from None
    return {keys[key]: msgpack.unpackb(entry.value) for key, entry in found.items()}


def _check_same_machine(rank: int, members: Mapping[int, dict[str, Any]]) -> None:
    own = members[rank]
    for peer, member in members.items():
        if member["machine"] != own["machine"]:
            raise BackendUnavailable(
                f"the native backend between {own['host']} (rank {rank}) and {member['host']} "
                f"(rank {peer})",
                "It links the ranks of one machine only in this version.",
            )
        if member["pid_namespace"] != own["pid_namespace"]:
            raise BackendUnavailable(
                f"the native backend between rank {rank} and rank {peer}",
                "They run in different PID namespaces; start them in one container.",
            )


def _create(size: int) -> int:
    descriptor = os.memfd_create("torsh-segment", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor


def _hand_out(
    offer: _Offer,
    descriptor: int,
    members: Mapping[int, dict[str, Any]],
    deadline: float,
    timeout: float,
) -> None:
    waiting = {peer for peer in members if peer != 0}
    offer.listener.settimeout(_LOOK_AROUND)
    while waiting:
        if time.monotonic() > deadline:
            raise CommTimeout("init_process_group", 0, timeout, sorted(waiting))
        try:
            connection, _ = offer.listener.accept()
        except TimeoutError:
            _check_alive(members, waiting)
            continue
        with connection:
            peer = _admit(connection, offer.token)
            if peer in waiting and _hand_over(connection, descriptor):
                waiting.discard(peer)


def _hand_over(connection: socket.socket, descriptor: int) -> bool:
    try:
        socket.send_fds(connection, [b"segment"], [descriptor])
    except OSError:
        return False  # it has ended; the next look around says so
    return True


def _check_alive(members: Mapping[int, dict[str, Any]], waiting: set[int]) -> None:
    for peer in sorted(waiting):
        if _has_ended(members[peer]["pid"]):
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


def _admit(connection: socket.socket, token: bytes) -> int:
    """The rank of whoever connected, -1 if it does not know the token."""
    connection.settimeout(5.0)
    try:
        greeting = connection.recv(_TOKEN_BYTES + 8)
    except OSError:
        return -1
    if not hmac.compare_digest(greeting[:_TOKEN_BYTES], token):
        return -1
    return int.from_bytes(greeting[_TOKEN_BYTES:], "little")


def _fetch(root: Mapping[str, Any], rank: int, deadline: float, timeout: float) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            connection.connect(f"\0{root['name']}")
            connection.send(root["token"] + rank.to_bytes(8, "little"))
            _, descriptors, _, _ = socket.recv_fds(connection, 16, 1, socket.MSG_CMSG_CLOEXEC)
        except TimeoutError:
            raise CommTimeout("init_process_group", 0, timeout, [0]) from None
        except OSError as error:
            raise _unreachable(root, error) from error
    if not descriptors:
        raise PeerLost(0, "init_process_group", 0)
    return descriptors[0]


def _unreachable(root: Mapping[str, Any], error: OSError) -> CommError:
    if _has_ended(root["pid"]):
        return PeerLost(0, "init_process_group", 0)
    return CommError(
        f"rank 0 (pid {root['pid']}) cannot be reached for the shared segment: {error}. It has "
        f"given up meeting the others, or runs in another network namespace."
    )
