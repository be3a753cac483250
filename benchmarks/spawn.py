"""Start N plain processes that meet through env://: `spawn.py N SCRIPT [ARG ...]`.

For libraries without a launcher of their own; the exit status is the first bad one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time


def free_port() -> int:
    """A TCP port on the loopback interface that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_PORT": port}
    return {**os.environ, "MASTER_ADDR": "127.0.0.1"} | {k: str(v) for k, v in place.items()}


def first_failure(workers: list[subprocess.Popen[bytes]]) -> int:
    """Wait for all; on the first bad exit kill the rest."""
    while any(worker.poll() is None for worker in workers):
        if any(worker.returncode for worker in workers):
            break
        time.sleep(0.02)
    for worker in workers:
        worker.kill()
        worker.wait()
    return next((worker.returncode for worker in workers if worker.returncode > 0), 0) or int(
        any(worker.returncode for worker in workers)
    )


def main() -> int:
    ranks, port = int(sys.argv[1]), free_port()
    command = [sys.executable, *sys.argv[2:]]
    return first_failure(
        [subprocess.Popen(command, env=environment(rank, ranks, port)) for rank in range(ranks)]
    )


if __name__ == "__main__":
    raise SystemExit(main())
