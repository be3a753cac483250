"""Measures the cost of proofs in a store: `store.py [--seconds 2] [--rate 1000]`.

Times requests with and without a secret, and connections and process groups while another user
floods the store's socket. A secret adds a MAC to each frame. "without" and "with" are the same
requests, interleaved. A connection is a worker's first action: connect, prove, one put. An init
makes a group of two ranks and leaves it. The flood needs root.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import signal
import socket
import statistics
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count, product
from typing import Any

import torsh_runtime as tr
from torsh_runtime.contract import WorkerEnv
from torsh_runtime.store.client import StoreClient
from torsh_runtime.store.endpoint import UnixEndpoint, parse_endpoint
from torsh_runtime.store.hosted import HostedStore

PATIENCE = 60.0
STRANGER = 65534
SIZES = {"16 B": 16, "64 KiB": 64 << 10, "8 MiB": 8 << 20}


@contextmanager
def child(work: Callable[[], object]) -> Iterator[None]:
    """Run the function in a child process during the block, and kill that at the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # the parent's contexts must not be left here
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Yield a pipe's ends to read and to write."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextmanager
def served(listen: str, secret: bytes) -> Iterator[str]:
    """Serve a store in a child process, and yield its endpoint."""
    with pipe() as (reader, writer):

        def serve() -> None:
            with HostedStore.start(listen, secret) as hosted:
                os.write(writer, hosted.endpoint.encode())
                signal.pause()

        with child(serve):
            if not select.select([reader], [], [], 30)[0]:
                raise SystemExit(f"no store came up at {listen} within 30 s")
            yield os.read(reader, 200).decode()


def duration(work: Callable[[], object], seconds: float) -> float:
    """Return the median of as many runs as fit, at least 5, in seconds."""
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while len(samples) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def endpoint_of(kind: str) -> str:
    """Return an endpoint to listen on."""
    return "tcp:127.0.0.1:0" if kind == "tcp" else f"unix:@torsh-benchmark-{secrets.token_hex(8)}"


def requests(kind: str, seconds: float) -> None:
    """Print a table of put and get with and without a secret."""
    key = b"benchmark's secret"
    with (
        served(endpoint_of(kind), b"") as plain,
        served(endpoint_of(kind), key) as signed,
        StoreClient.connect(plain, b"", PATIENCE) as one,
        StoreClient.connect(signed, key, PATIENCE) as two,
    ):
        for name, size in SIZES.items():
            value = os.urandom(size)
            works: dict[str, Callable[[StoreClient], object]] = {
                "put": lambda client, value=value: client.put("key", value),
                "get": lambda client: client.get("key"),
            }
            for what, work in works.items():
                plains, signeds = [], []
                for _ in range(3):
                    plains.append(duration(partial(work, one), seconds / 3))
                    signeds.append(duration(partial(work, two), seconds / 3))
                without, with_secret = min(plains), min(signeds)
                print(
                    f"{kind:5} {what} {name:7} {1 / without:9.0f}/s without {1 / with_secret:9.0f}"
                    f"/s with   {with_secret / without:.2f}"
                )


def flood(endpoint: str, rate: float, data: bytes) -> None:
    """Connect forever as another user, send the data, and disconnect, `rate` times a second.

    Over TCP it disconnects by a reset.
    """
    os.setgid(STRANGER)
    os.setuid(STRANGER)
    where = parse_endpoint(endpoint)
    is_unix = isinstance(where, UnixEndpoint)
    address = where.address if isinstance(where, UnixEndpoint) else (where.host, where.port)
    due = time.perf_counter()
    while True:
        due = max(due + 1 / rate, time.perf_counter() - 0.1)
        time.sleep(max(due - time.perf_counter(), 0.0))
        with socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET) as sock:
            with suppress(OSError):  # the store disconnected it
                sock.connect(address)
                sock.send(data)
            if not is_unix:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def compare(
    what: str, endpoint: str, work: Callable[[], object], data: bytes, options: Any
) -> None:
    """Print the median of `work`, undisturbed and flooded, interleaved."""
    quiet, disturbed = [], []
    for _ in range(5):
        quiet.append(duration(work, options.seconds))
        with child(partial(flood, endpoint, options.rate, data)):
            disturbed.append(duration(work, options.seconds))
    without, under = statistics.median(quiet), statistics.median(disturbed)
    print(
        f"{what} {without * 1e3:.2f} ms, {under * 1e3:.2f} ms while another user connects "
        f"{options.rate:g} times a second and sends {len(data)} B   {under / without:.2f}"
    )


def connections(kind: str, data: bytes, options: Any) -> None:
    """Measure connections of this user while another one floods the store."""
    key = b"benchmark's secret"
    with served(endpoint_of(kind), key) as endpoint:

        def connect() -> None:
            with StoreClient.connect(endpoint, key, PATIENCE) as client:
                client.put("key", b"")

        compare(f"{kind:5} connection", endpoint, connect, data, options)


def inits(kind: str, data: bytes, options: Any) -> None:
    """Measure init_process_group() of two ranks over a store that another user floods."""
    key = secrets.token_bytes(32)
    with served(endpoint_of(kind), key) as endpoint, pipe() as (reader, writer):
        place = {"world_size": 2, "local_world_size": 2, "store_endpoint": endpoint}
        job = partial(WorkerEnv, secret=key.hex(), **place)
        turns = count(1)

        def follow() -> None:
            while turn := os.read(reader, 4):
                initialise(job(rank=1, local_rank=1, round=int.from_bytes(turn)))

        def both() -> None:
            number = next(turns)
            os.write(writer, number.to_bytes(4))
            initialise(job(rank=0, local_rank=0, round=number))

        with child(follow):
            compare(f"{kind:5} init of 2 ranks", endpoint, both, data, options)


def initialise(env: WorkerEnv) -> None:
    """Make the default group and leave it."""
    os.environ.update(env.to_environ())
    tr.init_process_group("native", timeout=PATIENCE)
    tr.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--rate", type=float, default=1000.0, help="of the flood, a second")
    options = parser.parse_args()
    for kind in ("unix", "tcp"):
        requests(kind, options.seconds)
    if os.geteuid() == 0:
        for kind, data in product(("unix", "tcp"), (b"", bytes(500))):
            connections(kind, data, options)
        for kind, data in product(("unix", "tcp"), (b"", bytes(500))):
            inits(kind, data, options)
    else:
        print("connections under a flood: only root can be another user", file=sys.stderr)


if __name__ == "__main__":
    main()
