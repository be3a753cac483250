"""Measures how well recordings of several nodes are on one clock.

    python benchmarks/clocks.py --bars

Two network namespaces with a cable between them are two nodes. The second one's clock is a day
ahead, by a time namespace, so the true offset is known. A job of two ranks fails there repeatedly,
after a thousand operations each time, and the agents keep its recordings. Then clocks that drift
are simulated, over a network with jitter.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check, all_pass
from benchmarks.namespaces import Cable, cable
from benchmarks.peers import ONE_THREAD, UnavailableError
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, started
from benchmarks.spawn import entering
from benchmarks.table import render
from torshrun.health.alignment import aligned
from torshrun.health.clocks import ClockEstimator, Exchange
from torshrun.health.recordings import Dump, load

AHEAD = 86_400.0
"""Seconds by which the second node's clock is ahead."""
_US = 1e-6
_MOST_US = 50.0
_TIMEOUT = 1800.0
_LEAST = 100_000
_PORT = 29_500
_BAR = "clocks"


# ---- two nodes


def be_rank(operations: int, attempts: int) -> int:
    """Run a rank that fails in all attempts but its last."""
    import numpy as np

    import torsh_runtime as tr

    tr.init_process_group()
    array, rank, chance = np.ones(1), tr.get_rank(), random.Random()
    for number in range(operations):
        if number % 50 == 0:
            time.sleep(chance.uniform(0, 0.01))  # so that one waits for the other
        if number % 10 == 0:
            tr.send(array, 1) if rank == 0 else tr.recv(array, 0)
        else:
            tr.all_reduce(array)
    tr.barrier()
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) + 1 < attempts:
        os._exit(1)  # at once: an agent keeps what was recorded if a rank of its own has failed
    return 0


def kept(laid: Cable, folder: Path, operations: int, attempts: int) -> list[list[Dump]]:
    """Return what both nodes have kept of each failed attempt. Raises RunError if the job fails."""
    script = [str(Path(__file__).resolve()), "--rank"]
    options = ["--operations", str(operations), "--attempts", str(attempts)]
    meeting = f"{laid.addresses[0]}:{_PORT}"
    launch = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "tcp"]
    launch += ["--rdzv-endpoint", meeting, "--rdzv-id", "clocks", "--restart-backoff", "0"]
    launch += ["--max-restarts", str(attempts - 1)]
    env = {**ONE_THREAD, "TORSH_SECRET": secrets.token_hex(32)}

    def node(number: int) -> Program:
        apart = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", f"{AHEAD:.0f}"]
        where = [*entering(laid.holders[number]), *(apart if number else [])]
        command = [*where, sys.executable, "-m", "torshrun", *launch]
        kept_in = ["--log-dir", str(folder / str(number))]
        return Program([*command, *kept_in, *script, *options], folder, env)

    said = folder / "stderr"
    with (
        said.open("w") as log,
        started(node(0), stdout=subprocess.DEVNULL, stderr=log.fileno()) as first,
        started(node(1), stdout=subprocess.DEVNULL, stderr=log.fileno()) as second,
    ):
        codes = [each.wait(_TIMEOUT) for each in (first, second)]
    if any(codes):
        raise RunError(f"the job ended with {codes}: {said.read_text()[-2000:]}")
    return _loaded(folder)


def _loaded(folder: Path) -> list[list[Dump]]:
    found: dict[int, list[Dump]] = defaultdict(list)
    for path in sorted(folder.rglob("operations_*.bin"), key=lambda path: path.name):
        if dump := load(str(path)):
            found[dump.round].append(dump)
    return [dumps for _, dumps in sorted(found.items()) if len(dumps) == 2]


class Told(NamedTuple):
    """Holds an offset's error and bound, in seconds."""

    error: float
    bound: float


def of_agents(dumps: Sequence[Dump]) -> Iterator[Told]:
    """Yield the offsets to the leader's clock that agents on the other node knew."""
    leads = next((dump.node for dump in dumps if dump.reading == (0.0, 0.0, 0.0, 0.0)), -1)
    for dump in dumps:
        if dump.node != leads and dump.offset is not None:
            true = -AHEAD if dump.node == 1 else AHEAD
            yield Told(abs(dump.offset - true), dump.bound)


def of_both(dumps: Sequence[Dump]) -> Told:
    """Return the offset once operations have narrowed its bound."""
    first, second = dumps
    assert first.offset is not None
    assert second.offset is not None
    apart = first.offset - second.offset - AHEAD
    return Told(abs(apart), first.bound + second.bound)


def effects(dumps: Sequence[Dump]) -> tuple[int, int]:
    """Return how many operations of both ranks were joined, and how many effects precede causes."""
    first, second = (
        {(each.operation, each.group, each.sequence): each for each in dump.operations[rank]}
        for rank, dump in enumerate(dumps)
    )
    joined = wrong = 0
    for (operation, *where), here in first.items():
        there = second.get(("recv" if operation == "send" else operation, *where))
        if there is None or here.left is None or there.left is None:
            continue
        if operation == "send":
            joined, wrong = joined + 1, wrong + (there.left < here.entered)
        elif operation in ("all_reduce", "barrier"):
            late = here.left < there.entered or there.left < here.entered
            joined, wrong = joined + 1, wrong + late
    return joined, wrong


# ---- simulated clocks


def simulated(seed: int, drift: float, count: int) -> list[Told]:
    """Return the estimates of a drifting clock over a network with jitter.

    The way back is slower than the way out, and sometimes messages are very slow.
    """
    chance, estimator, found = random.Random(seed), ClockEstimator(), []
    offset, now = chance.uniform(-1e5, 1e5), chance.uniform(0, 1e6)

    def there(time: float) -> float:
        return time * (1 + drift) + offset

    for number in range(count):
        now += 0.0 if number < 8 or number % 4 < 2 else chance.uniform(1.0, 1.5)
        ways = [30 * _US + chance.expovariate(1 / mean) for mean in (10 * _US, 40 * _US)]
        out, back = (way + chance.uniform(0, 0.2) * (chance.random() < 0.05) for way in ways)
        received, sent = now + out, now
        answered = received + chance.uniform(0, 100 * _US)
        now = answered + back
        estimator.add(Exchange(sent, there(received), there(answered), now))
        reading = estimator.at(now)
        if reading and number >= 16:
            found.append(Told(abs(reading.offset - (there(now) - now)), reading.bound))
    return found


# ---- what came of it


def row(what: str, told: Sequence[Told]) -> list[str]:
    errors = sorted(each.error / _US for each in told)
    bound = statistics.median(each.bound for each in told) / _US
    worst = f"{errors[-1]:.1f}"
    return [what, str(len(told)), f"{statistics.median(errors):.1f}", worst, f"{bound:.1f}"]


def checks(what: str, told: Sequence[Told]) -> list[Check]:
    outside = sum(each.error > each.bound for each in told)
    most = max((each.error / _US for each in told), default=None)
    return [
        Check(f"{what}: us of error", most, _MOST_US, at_most=True, bar=_BAR),
        Check(f"{what}: errors beyond their bound", float(outside), 0, at_most=True, bar=_BAR),
    ]


def report(rounds: Sequence[Sequence[Dump]], steady: Sequence[Told], least: int) -> list[Check]:
    """Print the tables, and return the checks. `least`: how many operations must be joined."""
    joined = [aligned(dumps) for dumps in rounds]
    agents = [told for dumps in rounds for told in of_agents(dumps)]
    narrowed = [of_both(dumps) for dumps in joined]
    counts = [effects(dumps) for dumps in joined]
    operations, wrong = (sum(each) for each in zip(*counts, strict=True))
    rows = {
        "two nodes, by beats": agents,
        "two nodes, narrowed by operations": narrowed,
        "simulated, 50 ppm": steady,
    }
    head = ["clock", "readings", "error us, median", "worst", "bound us, median"]
    print(render(head, [row(what, told) for what, told in rows.items() if told]))
    print(f"{operations} joined operations, {wrong} effects before their causes")
    found = [check for what, told in rows.items() for check in checks(what, told)]
    early = Check("effects before their causes", float(wrong), 0, at_most=True, bar=_BAR)
    return [*found, early, Check("joined operations", float(operations), least, bar=_BAR)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--attempts", type=int, default=125, help="default: 125")
    parser.add_argument("--operations", type=int, default=1000, help="of each; default: 1000")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is not reached")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank:
        return be_rank(options.operations, options.attempts)
    interrupt_on_term()
    attempts = 4 if options.quick else options.attempts
    steady = [
        told for seed in range(1 if options.quick else 20) for told in simulated(seed, 50e-6, 100)
    ]
    try:
        with cable() as laid, tempfile.TemporaryDirectory() as folder:
            rounds = kept(laid, Path(folder), options.operations, attempts)
    except (UnavailableError, RunError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    found = report(rounds, steady, 1 if options.quick else _LEAST)
    print("\n".join(map(str, found)))
    return 0 if all_pass(found) or not options.bars else 1


if __name__ == "__main__":
    raise SystemExit(main())
