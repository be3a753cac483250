"""Measures how long the loss of a node holds up a training that goes on without restarts.

    python benchmarks/recovery_nodes.py --help

Three hosts, each a network namespace with an agent and a worker, train beside a real etcd. Needs
root. Again and again a node is lost at a random moment, which leads the job or does not: its agent
is killed, or its host is powered off, so that nobody hears of it by its connections. wait: from
then until both other nodes have committed a step again. net: without the ttl and one step. Then
another node comes. hold: the longest time between two commits while it comes, without one step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.hosts import Host
from support.launcher import Launcher
from support.sites import Site, clustered, site

from benchmarks.bars import Check
from benchmarks.elasticity_scenes import prepare
from benchmarks.peers import UnavailableError
from benchmarks.processes import INTERRUPTED, RunError, interrupt_on_term
from benchmarks.session import positive
from benchmarks.table import render

WORKER = str(Path(__file__).with_name("recovery_nodes_worker.py"))
NODES = 3
PATIENCE = 120.0
"""Seconds that nodes may take to train, and to go on after a loss."""
SETTLE = 1.0
"""Seconds of steps before each loss."""


class Commit(NamedTuple):
    """Represents a commit on one host: the number of ranks, and the moment in seconds."""

    world: int
    at: float


class Figures(NamedTuple):
    """Holds what was measured of one kind of loss, in seconds."""

    waits: list[float]
    holds: list[float]


class Training:
    """Represents a job whose workers write down what they commit."""

    def __init__(self, place: Site) -> None:
        """Follow the workers of this site."""
        self.place = place

    def commits(self, host: Host) -> list[Commit]:
        """Return what was committed on a host so far."""
        path = self.place.folder / "commits" / str(host.number)
        lines = path.read_text().splitlines() if path.exists() else []
        return [Commit(int(world), float(at)) for _, world, at in map(str.split, lines)]

    def await_commit(self, hosts: Sequence[Host], world: int, since: float) -> float:
        """Return when all of these hosts had committed a step of so many ranks after a moment.

        Raises RunError if they do not in time.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = [
                next((c.at for c in self.commits(host) if c.at > since and c.world == world), None)
                for host in hosts
            ]
            moments = [at for at in found if at is not None]
            if len(moments) == len(hosts):
                return max(moments)
            time.sleep(0.05)
        raise RunError(f"no commit of {world} ranks in {PATIENCE:g} s: {self.place.told()}")

    def gaps(self, host: Host, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Return the seconds between commits on a host in this time."""
        moments = [each.at for each in self.commits(host) if since <= each.at <= until]
        return [late - early for early, late in itertools.pairwise(moments)]


def _kill_agent(place: Site, host: Host) -> None:
    place.nodes[host.number].send(signal.SIGKILL)
    place.nodes[host.number].end()


LOSSES: Mapping[str, Callable[[Site, Host], None]] = {
    "agent killed": _kill_agent,
    "host powered off": Site.kill_host,
}


def measure(training: Training, times: int) -> tuple[dict[str, Figures], float]:
    """Return what the loss of nodes costs, by who was lost and how, and the step's seconds."""
    place, found = training.place, dict[str, Figures]()
    training.await_commit(place.hosts, NODES, 0.0)
    time.sleep(2 * SETTLE)
    step = statistics.median(training.gaps(place.hosts[0])[1:])
    for _, (how, lose), leads in itertools.product(range(times), LOSSES.items(), (True, False)):
        figures = found.setdefault(f"{'leader' if leads else 'member'}: {how}", Figures([], []))
        time.sleep(SETTLE + random.random() * step)
        victim = place.one(leads=leads)
        others = [host for host in place.hosts if host != victim]
        lost = time.monotonic()
        lose(place, victim)
        figures.waits.append(training.await_commit(others, NODES - 1, lost) - lost)
        came = time.monotonic()
        place.revive(victim)
        back = training.await_commit(place.hosts, NODES, came)
        figures.holds.append(max(training.gaps(others[0], came, back + step)) - step)
    return found, step


@contextlib.contextmanager
def trains(folder: Path, options: argparse.Namespace) -> Iterator[Training]:
    """Start a job on three hosts. Raises RunError if its processes cannot be ended."""
    (folder / "commits").mkdir()
    conf = f"last_call_timeout=0.5,ttl={options.ttl},join_timeout=120,close_timeout=5"
    worker = WORKER, str(options.width), str(options.pace)
    etcd = partial(clustered, options.etcd, 3)
    more = "--max-restarts=1000000", "--preload=auto"
    with (
        Launcher(folder) as launcher,
        site(launcher, etcd, f"2:{NODES}", NODES, conf, *more, program=worker) as place,
    ):
        for host in place.hosts:
            place.start(host)
        yield Training(place)


def table(found: Mapping[str, Figures], ttl: float, step: float) -> str:
    """Return the medians and the worst figures in seconds."""
    body = []
    for name, each in found.items():
        wait, hold = statistics.median(each.waits), statistics.median(each.holds)
        worst = max(each.waits)
        figures = wait, wait - ttl - step, worst - ttl - step, hold
        body.append([name, *(f"{figure:.2f}" for figure in figures), str(len(each.waits))])
    return render(["lost", "wait", "net", "worst net", "hold of the next", "times"], body)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--times", type=positive, default=5, help="losses of each kind; default: 5")
    add("--ttl", type=float, default=2.0, help="default: 2")
    add("--etcd", default="3.5", help="its version; default: 3.5")
    add("--width", type=positive, default=200, help="its square is the number of parameters")
    add("--pace", type=float, default=0.05, help="seconds of a step's computation; default: 0.05")
    add("--quick", action="store_true", help="little: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    if options.quick:
        options.times = 1
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    try:
        prepare(options.etcd)
        with tempfile.TemporaryDirectory() as folder, trains(Path(folder), options) as training:
            found, step = measure(training, options.times)
    except UnavailableError as error:
        print(f"not measured: {error}")
        return 1
    except (RunError, AssertionError) as error:
        print(error)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"{NODES} nodes, ttl {options.ttl:g} s, steps of {step * 1e3:.0f} ms")
    print(table(found, options.ttl, step))
    if not options.bars:
        return 0
    checks = [
        Check(f"{name}: wait without ttl and a step, s", net, 1.0, at_most=True)
        for name, each in found.items()
        for net in [statistics.median(each.waits) - options.ttl - step]
    ]
    print("\n" + "\n".join(map(str, checks)))
    return int(not all(check.passed for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
