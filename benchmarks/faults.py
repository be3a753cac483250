"""Measures how long the survivors of a killed, stopped or disconnected rank stay blocked.

    python benchmarks/faults.py --ranks 4 --times 20

A random rank is struck at a random moment of endless work. The time is measured until the last
survivor has raised the error that names it. Work is all_reduce of several sizes, the same
asynchronously, or messages in a ring. Prints the distributions, in ms; for stops, how much later
than the deadline. Ranks are on one node and, as root, in two network namespaces. Ends with status 1
if a survivor raised anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

import torsh_runtime as tr

PATIENCE = 60.0
"""Seconds after which a survivor counts as hanging."""
HEARTBEAT = 1.0
"""Value of TORSH_HEARTBEAT in seconds."""
DEADLINE = 1.0
"""Timeout of operations in seconds in runs where ranks are stopped."""
PORT = 29500
CHILDREN = "TORSH_BENCHMARK_CHILDREN"
"""The variable with the number of children that each rank forks."""
SIZES = {"8 B": 2, "1 MiB": 1 << 18, "64 MiB": 1 << 24}

Place = list[str]
"""Words before a command that make it run on one node."""
Work = Callable[[int, int, np.ndarray], None]


def reduce(rank: int, ranks: int, array: np.ndarray) -> None:
    """Do one step of the work."""
    tr.all_reduce(array)


def reduce_asynchronously(rank: int, ranks: int, array: np.ndarray) -> None:
    """Do one step of the work."""
    for work in [tr.all_reduce(array, async_op=True) for _ in range(2)]:
        assert work is not None
        work.wait()


def pass_on(rank: int, ranks: int, array: np.ndarray) -> None:
    """Do one step of the work."""
    sending = tr.isend(array, (rank + 1) % ranks)
    tr.recv(np.empty_like(array), (rank - 1) % ranks)
    sending.wait()


WORKS: dict[str, Work] = {
    "all_reduce": reduce,
    "asynchronous": reduce_asynchronously,
    "messages": pass_on,
}


class Account(NamedTuple):
    """Holds the report of a survivor."""

    raised: float
    """Time of the monotonic clock, in seconds."""
    kind: str
    blamed: list[int]
    text: str


def be_rank(work: str, rank: int, ranks: int, address: str, count: int, timeout: float) -> None:
    """Work until an error. Standard output says when the work starts, and how it ended."""
    tr.init_process_group("native", address, timeout, ranks, rank)
    array = np.zeros(count, np.float32)
    WORKS[work](rank, ranks, array)
    for _ in range(int(os.environ.get(CHILDREN, "0"))):
        if os.fork() == 0:  # a child keeps the rank's descriptors open until its input ends
            sys.stdin.read()
            os._exit(0)
    print("ready", flush=True)
    try:
        while True:
            WORKS[work](rank, ranks, array)
    except tr.CommError as error:
        blamed = getattr(error, "missing", None) or [getattr(error, "rank", -1)]
        account = Account(time.monotonic(), type(error).__name__, list(blamed), str(error))
        print(json.dumps(account), flush=True)
    sys.stdin.read()  # nobody leaves before all have reported
    os._exit(0)


class Rank:
    """Represents one of the rank processes."""

    def __init__(self, place: Place, *arguments: object) -> None:
        command = [*place, sys.executable, "-P", __file__, "--rank", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def line(self) -> str:
        """Return the next line that it prints. Raises TimeoutError if that takes too long."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError("a rank hangs")
        return self.process.stdout.readline().decode()

    def account(self) -> Account:
        """Return the report about the end of its work."""
        return Account(*json.loads(self.line()))

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()


@contextmanager
def started(
    work: str, places: list[Place], address: str, count: int, timeout: float
) -> Iterator[list[Rank]]:
    """Start ranks, and yield them once they have started to work."""
    given = (len(places), address, count, timeout)
    ranks = [Rank(place, work, number, *given) for number, place in enumerate(places)]
    try:
        for rank in ranks:
            if rank.line() != "ready\n":
                raise SystemExit("a rank did not come to work; see above")
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


class Outcome(NamedTuple):
    """Holds the result of one strike."""

    seconds: float
    """Time until the last survivor had raised, beyond the deadline for stops."""
    wrong: list[str]
    """Texts of reports that are wrong."""


def strike(
    work: str, places: list[Place], address: str, count: int, number: signal.Signals
) -> Outcome:
    """Kill or stop a random rank at a random moment."""
    is_stop = number is signal.SIGSTOP
    with started(work, places, address, count, DEADLINE if is_stop else PATIENCE) as ranks:
        time.sleep(random.random() * 0.3)
        victim = random.randrange(len(ranks))
        struck = time.monotonic()
        ranks[victim].process.send_signal(number)
        told = {each: rank.account() for each, rank in enumerate(ranks) if each != victim}
    due = struck + (DEADLINE if is_stop else 0)
    kind = "CommTimeout" if is_stop else "PeerLost"
    wrong = [
        account.text
        for each, account in told.items()
        if account.kind != kind
        or victim not in account.blamed
        or (is_stop and places[each] == places[victim] and "stopped" not in account.text)
    ]
    return Outcome(max(account.raised for account in told.values()) - due, wrong)


def cut(work: str, places: list[Place], address: str, count: int, links: list[Place]) -> Outcome:
    """Disconnect one of two nodes. Both sides must name the other."""
    with started(work, places, address, count, PATIENCE) as ranks:
        time.sleep(random.random() * 0.3)
        struck = time.monotonic()
        subprocess.run([*links[1], "ip", "link", "set", "plug", "down"], check=True)
        told = [rank.account() for rank in ranks]
    subprocess.run([*links[1], "ip", "link", "set", "plug", "up"], check=True)
    wrong = [
        account.text
        for place, account in zip(places, told, strict=True)
        if account.kind != "PeerLost" or places[account.blamed[0]] == place
    ]
    return Outcome(max(account.raised for account in told) - struck, wrong)


@contextmanager
def two_nodes() -> Iterator[list[Place]]:
    """Create two network namespaces with a cable between them, which end with this process."""
    holders = [
        subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) for _ in range(2)
    ]
    try:
        places = [["nsenter", f"--net=/proc/{holder.pid}/ns/net"] for holder in holders]
        time.sleep(0.5)
        peer = f"peer name plug netns {holders[1].pid}".split()
        subprocess.run(
            [*places[0], *["ip", "link", "add", "plug", "type", "veth"], *peer], check=True
        )
        for number, place in enumerate(places, 1):
            address = f"ip address add 10.78.0.{number}/24 dev plug"
            for line in (address, "ip link set lo up", "ip link set plug up"):
                subprocess.run([*place, *line.split()], check=True)
        yield places
    finally:
        for holder in holders:
            holder.communicate()


def report(name: str, outcomes: list[Outcome]) -> bool:
    """Print the outcomes, and return whether all are right."""
    times = sorted(outcome.seconds * 1e3 for outcome in outcomes)
    wrong = [text for outcome in outcomes for text in outcome.wrong]
    print(
        f"{name:<46} median {statistics.median(times):7.1f} ms, "
        f"95 % {times[len(times) * 95 // 100]:7.1f}, most {times[-1]:7.1f}; "
        f"{len(times)} times, {len(wrong)} wrong accounts {wrong[:2]}",
        flush=True,
    )
    return not wrong


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def in_a_node(ranks: int, times: int, quick: bool) -> Iterator[tuple[str, list[Outcome]]]:
    """Yield each row of the table."""
    places: list[Place] = [[]] * ranks
    rows = [("all_reduce", size) for size in SIZES]
    rows += [(work, "1 MiB") for work in ("asynchronous", "messages")]
    for work, size in rows[:1] if quick else rows:
        outcomes = [
            strike(work, places, free_address(), SIZES[size], signal.SIGKILL) for _ in range(times)
        ]
        yield f"node, {ranks} ranks, {work} {size}: kill", outcomes
    few = max(times // 4, 1)
    stops = [
        strike("all_reduce", places, free_address(), SIZES["8 B"], signal.SIGSTOP)
        for _ in range(few)
    ]
    yield f"node, {ranks} ranks, all_reduce 8 B: stop", stops


def between_nodes(ranks: int, times: int, quick: bool) -> Iterator[tuple[str, list[Outcome]]]:
    """Yield each row of the table."""
    with two_nodes() as nodes:
        places = [nodes[rank * 2 // ranks] for rank in range(ranks)]
        address = f"tcp://10.78.0.1:{PORT}"
        for work in ["messages"] if quick else WORKS:
            name = f"two nodes, {ranks} ranks, {work} 1 MiB"
            given = (work, places, address, SIZES["1 MiB"])
            yield f"{name}: kill", [strike(*given, signal.SIGKILL) for _ in range(times)]
            few = range(max(times // 4, 1))
            yield f"{name}: stop", [strike(*given, signal.SIGSTOP) for _ in few]
            yield f"{name}: cut", [cut(*given, nodes) for _ in few]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--times", type=int, default=20, help="kills of each kind")
    parser.add_argument("--children", default="0", help="that each rank has forked")
    parser.add_argument("--quick", action="store_true", help="few strikes: shows that it works")
    options = parser.parse_args()
    os.environ[CHILDREN] = options.children
    times = 1 if options.quick else options.times
    os.environ["TORSH_HEARTBEAT"] = str(HEARTBEAT)
    os.environ["TORSH_SECRET"] = os.urandom(16).hex()
    well = [report(*row) for row in in_a_node(options.ranks, times, options.quick)]
    if os.geteuid() == 0:
        well += [report(*row) for row in between_nodes(options.ranks, times, options.quick)]
    else:
        print("between nodes: needs root", file=sys.stderr)
    sys.exit(not all(well))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        name, rank, ranks, address, count, timeout = sys.argv[2:]
        be_rank(name, int(rank), int(ranks), address, int(count), float(timeout))
    main()
