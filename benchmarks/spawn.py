"""Starts N plain processes that connect through env://: `spawn.py [OPTIONS] N SCRIPT [ARG ...]`.

It is for libraries without a launcher of their own. With --namespaces the ranks are distributed to
these network namespaces in blocks of equal size, as if each were a node.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence


def free_port() -> int:
    """Return a TCP port on the loopback interface that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def entering(holder: int) -> list[str]:
    """Return the words that start a command in the network namespace of this process."""
    return ["nsenter", f"--net=/proc/{holder}/ns/net", "--"]


def environment(rank: int, ranks: int, nodes: int, address: str, port: int) -> dict[str, str]:
    """Return the environment that a launcher would set for this rank."""
    local = ranks // nodes
    place = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": rank % local,
        "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": rank // local,
        "GROUP_WORLD_SIZE": nodes,
        "MASTER_PORT": port,
    }
    return {**os.environ, "MASTER_ADDR": address} | {k: str(v) for k, v in place.items()}


def start(options: argparse.Namespace) -> list[subprocess.Popen[bytes]]:
    """Start all ranks, and return them in order."""
    holders: Sequence[int] = options.namespaces
    ranks, nodes, port = options.ranks, max(len(holders), 1), free_port()
    workers = []
    for rank in range(ranks):
        env = environment(rank, ranks, nodes, options.address, port)
        prefix = entering(holders[rank * nodes // ranks]) if holders else []
        workers.append(subprocess.Popen([*prefix, sys.executable, *options.command], env=env))
    return workers


def last_end(workers: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all, whoever fails. Return the exit status of rank 0."""
    statuses = [worker.wait() for worker in workers]
    return statuses[0]


def first_failure(workers: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all; on the first bad exit kill the rest, and print who failed. Return 0 or 1."""
    while any(worker.poll() is None for worker in workers):
        if any(worker.returncode for worker in workers):
            break
        time.sleep(0.02)
    failed = [(rank, worker.poll()) for rank, worker in enumerate(workers)]
    for worker in workers:
        worker.kill()
        worker.wait()
    for rank, status in failed:
        if status:
            print(f"rank {rank}: exit status {status}", flush=True)
    return int(any(status for _, status in failed))


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--namespaces", type=_pids, default=(), help="a process in each, by pid: PID,PID,...")
    add("--address", default="127.0.0.1", help="where rank 0 may listen")
    add("--outlive", action="store_true", help="ranks that fail end no others")
    add("ranks", type=int)
    add("command", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def _pids(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    given = parse()
    raise SystemExit((last_end if given.outlive else first_failure)(start(given)))
