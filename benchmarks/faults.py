"""How long the survivors of a SIGKILLed rank stay in a collective.

    python benchmarks/faults.py --ranks 4 --kills 50

Kills a random rank at a random moment of an endless run of all_reduce and prints, per size, the
distribution of the time from the kill until the last survivor has raised PeerLost naming that rank,
in ms. Ends with status 1 if a survivor raised anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import sys
import time

import numpy as np

import torsh_runtime as tr

SIZES = {"8 B": 2, "1 MiB": 1 << 18, "64 MiB": 1 << 24}
Account = tuple[int, float, str]
"""A survivor's rank, when it raised (monotonic seconds), and what."""


def be_rank(rank: int, ranks: int, address: str, count: int, pipe: int) -> None:
    """Reduce until it fails, and say when and how."""
    tr.init_process_group("native", address, rank, ranks, 30.0)
    array = np.zeros(count, np.float32)
    os.write(pipe, b"r")
    try:
        while True:
            tr.all_reduce(array)
    except tr.CommError as error:
        raised = time.monotonic()
        culprit = getattr(error, "rank", "?")
        account: Account = (rank, raised, f"{type(error).__name__}({culprit})")
        os.write(pipe, json.dumps(account).encode())
    os._exit(0)


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def one_kill(ranks: int, count: int) -> tuple[float, list[str]]:
    """Seconds until the last survivor raised, and what was not as it should be."""
    address, pipes, children = free_address(), [], []
    for rank in range(ranks):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            be_rank(rank, ranks, address, count, writing)
        os.close(writing)
        pipes.append(reading)
        children.append(child)
    for pipe in pipes:
        os.read(pipe, 1)
    time.sleep(random.random() * 0.3)
    victim = random.randrange(ranks)
    killed = time.monotonic()
    os.kill(children[victim], signal.SIGKILL)
    accounts = [read_account(pipe) for number, pipe in enumerate(pipes) if number != victim]
    for child in children:
        os.waitpid(child, 0)
    os.close(pipes[victim])
    wrong = [text for _, _, text in accounts if text != f"PeerLost({victim})"]
    return max(raised for _, raised, _ in accounts) - killed, wrong


def read_account(pipe: int) -> Account:
    with os.fdopen(pipe) as file:
        rank, raised, text = json.load(file)
    return rank, raised, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--kills", type=int, default=50, help="per size")
    parser.add_argument("--quick", action="store_true", help="two kills: shows that it works")
    options = parser.parse_args()
    if options.quick:
        options.kills = 2
    failed = False
    for name, count in SIZES.items():
        outcomes = [one_kill(options.ranks, count) for _ in range(options.kills)]
        times = sorted(seconds * 1e3 for seconds, _ in outcomes)
        wrong = [text for _, texts in outcomes for text in texts]
        failed |= bool(wrong)
        print(
            f"{name:>7}: median {statistics.median(times):6.1f} ms, "
            f"95 % {times[len(times) * 95 // 100]:6.1f}, most {times[-1]:6.1f}; "
            f"{len(times)} kills, {len(wrong)} wrong accounts {wrong[:3]}",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
