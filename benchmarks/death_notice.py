"""Measures how soon the death of a worker with much memory is noticed.

    python benchmarks/death_notice.py --gib 4 --bars

Jobs of three workers run under torshrun. The last worker has touched some gigabytes and is killed
while the others wait for it, in a group or in none. Each death is timed for the peers, which raise
PeerLost, and for the agent, which stops them. It is also timed for a pidfd, for the end of a
socket, and for waitpid, by which the kernel reports it once it has freed the memory.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import numpy as np

import torsh_runtime as tr
from benchmarks import machine
from benchmarks.bars import Check, all_pass
from benchmarks.launchers import Attempts
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, started
from benchmarks.table import render

RANKS, VICTIM = 3, 2
PATIENCE = 60.0
"""Seconds after which a job counts as hanging."""
LIMIT, UNWATCHED = 10.0, 100.0
"""Milliseconds within which a death must be noticed: by peers and the agent that they wake;
and by an agent that nobody wakes."""
PLACE = "TORSH_BENCHMARK_SOCKET"
"""The variable with the path of the socket to which workers report."""

WAITS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: tr.all_reduce(np.zeros(2)),
    "recv": lambda: tr.recv(np.zeros(2), VICTIM),
    "no group": signal.pause,
}
PEERS, AGENT, PIDFD, EOF, WAITPID = "peers", "agent", "pidfd", "socket", "waitpid"
WHO = {
    PEERS: "the last peer raises PeerLost",
    AGENT: "the agent stops the others",
    PIDFD: "a pidfd becomes readable",
    EOF: "a socket ends",
    WAITPID: "waitpid returns",
}
Times = dict[str, float]
"""Milliseconds from the kill, by observer. Without a group peers notice nothing."""


# ---- a worker


def be_worker(operation: str, gib: float) -> None:
    """Report when ready, then wait for the victim, and report its loss."""
    rank, in_group = int(os.environ["RANK"]), operation != "no group"
    told = socket.socket(socket.AF_UNIX)
    told.connect(os.environ[PLACE])
    held = touched(gib) if rank == VICTIM else None
    if in_group:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the agent may be faster than the peers
        tr.init_process_group()
        tr.barrier()
    tell(told, rank=rank, pid=os.getpid())
    if held is not None:
        signal.pause()
    try:
        WAITS[operation]()
    except tr.PeerLost as error:
        tell(told, lost=error.rank, time=time.time())
    os._exit(1)


def touched(gib: float) -> mmap.mmap:
    """Return memory whose pages all exist, with the usual size, as huge pages are freed faster."""
    memory = mmap.mmap(-1, int(gib * 2**30), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    np.frombuffer(memory, np.uint8)[:: mmap.PAGESIZE] = 1
    return memory


def tell(told: socket.socket, **facts: float) -> None:
    told.sendall(json.dumps(facts).encode() + b"\n")


# ---- a death


class Worker:
    """Holds the connection of a worker."""

    def __init__(self, connection: socket.socket) -> None:
        self.lines = connection.makefile()
        self.connection = connection
        facts = self.line()
        self.rank, self.pid = int(facts["rank"]), int(facts["pid"])

    def line(self) -> dict[str, float]:
        """Return the worker's next message. Raises RunError if it ends instead."""
        told = self.lines.readline()
        if not told:
            raise RunError("a worker ended without a word")
        found: dict[str, float] = json.loads(told)
        return found

    def close(self) -> None:
        self.lines.close()
        self.connection.close()


@contextlib.contextmanager
def job(folder: Path, operation: str, gib: float) -> Iterator[list[Worker]]:
    """Start a job, and yield its workers by rank once the survivors wait for the victim."""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as opened:
        listener.bind(str(folder / "socket"))
        listener.listen(RANKS)
        listener.settimeout(PATIENCE)
        options = ["--nproc-per-node", str(RANKS), "--events", str(folder / "events")]
        worker = [str(Path(__file__).resolve()), "--worker", operation, str(gib)]
        command = [sys.executable, "-m", "torshrun", *options, *worker]
        program = Program(command, folder, {PLACE: str(folder / "socket")})
        with started(program, stderr=subprocess.DEVNULL) as process:
            workers = []
            for _ in range(RANKS):
                connection, _ = listener.accept()
                connection.settimeout(PATIENCE)
                workers.append(Worker(connection))
                opened.callback(workers[-1].close)
            time.sleep(0.3)  # let them start to wait, and sleep
            yield sorted(workers, key=lambda each: each.rank)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)


def die(folder: Path, operation: str, gib: float) -> Times:
    """Kill the victim, and return when each observer noticed it, in ms."""
    with job(folder, operation, gib) as workers:
        victim = workers.pop(VICTIM)
        process, connection = os.pidfd_open(victim.pid), victim.connection.fileno()
        struck = time.time()
        os.kill(victim.pid, signal.SIGKILL)
        found = moments_of([process, connection])
        os.close(process)
        told = [each.line() for each in workers if operation != "no group"]
    if any(each["lost"] != VICTIM for each in told):
        raise RunError(f"the survivors lost another rank: {told}")
    events = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
    moments = {
        **({PEERS: max(each["time"] for each in told)} if told else {}),
        AGENT: moment(events, event="workers_stopping"),
        PIDFD: found[process],
        EOF: found[connection],
        WAITPID: moment(events, event="worker_exited", rank=VICTIM),
    }
    return {who: (when - struck) * 1e3 for who, when in moments.items()}


def moments_of(descriptors: Sequence[int]) -> dict[int, float]:
    """Return when each descriptor became readable. Raises RunError if that takes too long."""
    found: dict[int, float] = {}
    while waiting := [each for each in descriptors if each not in found]:
        ready, _, _ = select.select(waiting, [], [], PATIENCE)
        if not ready:
            raise RunError("the victim does not end")
        found |= dict.fromkeys(ready, time.time())
    return found


def moment(events: list[dict[str, float]], **facts: object) -> float:
    """Return when the first event with these facts was recorded."""
    found = (each["time"] for each in events if facts.items() <= each.items())
    first = next(found, None)
    if first is None:
        raise RunError(f"the agent told of no event with {facts}")
    return first


# ---- all of them


def table(taken: dict[str, list[Times]]) -> str:
    body = [
        [operation, WHO[who], f"{statistics.median(column):.1f}", f"{max(column):.1f}"]
        for operation, deaths in taken.items()
        for who in WHO
        if who in deaths[0]
        for column in [[each[who] for each in deaths]]
    ]
    return render(["peers wait in", "until", "median ms", "most"], body)


def checks(taken: dict[str, list[Times]]) -> list[Check]:
    return [
        Check(
            f"{operation}: until {WHO[who]}, ms",
            statistics.median(each[who] for each in deaths),
            UNWATCHED if operation == "no group" else LIMIT,
            at_most=True,
        )
        for operation, deaths in taken.items()
        for who in (PEERS, AGENT)
        if who in deaths[0]
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gib", type=float, default=4.0, help="of the victim; default: 4")
    parser.add_argument("--times", type=int, default=5, help="deaths of each kind; default: 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples")
    parser.add_argument("--quick", action="store_true", help="one small death of each kind")
    parser.add_argument("--bars", action="store_true", help="exit status 1 unless all bars pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.gib, options.times = 0.01, 1
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    attempts, taken, interrupted = Attempts(), dict[str, list[Times]](), False
    with contextlib.suppress(KeyboardInterrupt):
        interrupted = True
        for operation in WAITS:
            for _ in range(options.times):
                found = attempts.take(
                    operation, lambda folder, which=operation: die(folder, which, options.gib)
                )
                if found:
                    taken.setdefault(operation, []).append(found)
        interrupted = False
    print(f"from the SIGKILL of a worker of {options.gib:g} GiB\n{table(taken)}")
    found_checks = checks(taken)
    if options.bars:
        print("\n" + "\n".join(map(str, found_checks)))
    if options.json:
        record = {"machine": machine.describe(), "gib": options.gib, "times": taken}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    failed = attempts.failures or (options.bars and not all_pass(found_checks))
    return INTERRUPTED if interrupted else int(bool(failed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        be_worker(sys.argv[2], float(sys.argv[3]))
    raise SystemExit(main())
