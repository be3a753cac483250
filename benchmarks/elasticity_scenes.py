"""Causes faults and changes in jobs of several nodes, with hosts in namespaces and a real etcd.

The hosts, and the functions that change them, are those of the tests.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.etcd_servers import NotHereError, binary
from support.hosts import Host, cut_off, plug_in_again
from support.launcher import Launcher
from support.sites import Site, clustered, overlaps, site

from benchmarks.peers import UnavailableError
from benchmarks.processes import RunError
from benchmarks.rounds import say

PACE = 0.05
"""Seconds between two steps of a worker."""
LAST_CALL = 1.0
"""Seconds of the rendezvous' last call."""


REST = 0.5
"""Seconds between two changes."""


@dataclass(frozen=True, slots=True)
class Calm:
    """Holds what workers noticed of an event that should not affect them."""

    seconds: float
    """Duration of the event in seconds."""
    strikes: int
    rounds: int
    """Number of new rounds."""
    longest_pause: float
    """Longest time between two steps of a worker, in seconds."""
    words: int
    """Number of lines that agents wrote."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Holds times of one node that was cut off and healed, in seconds."""

    stopped: float
    """Time from the cut to the last step of the node's worker."""
    others: float
    """Time from the cut until the others trained again."""
    rejoined: float
    """Time from the healing until all trained again."""
    overlaps: list[str]


@dataclass(slots=True)
class Storm:
    """Counts the events of many faults in a row."""

    faults: dict[str, int] = field(default_factory=dict)
    rounds: int = 0
    workers: int = 0
    overlaps: list[str] = field(default_factory=list)


def prepare(version: str) -> None:
    """Fetch the needed programs.

    Raises UnavailableError if they are not available, or this is not root.
    """
    if os.geteuid() != 0:
        raise UnavailableError("network namespaces need root")
    try:
        binary(version)
    except NotHereError as error:
        raise UnavailableError(str(error)) from None


@contextlib.contextmanager
def _site(folder: Path, version: str, ttl: float, nnodes: str, count: int) -> Iterator[Site]:
    """Provide hosts with an etcd of three members.

    Raises RunError if an expected event does not happen, something is left behind, or a log or an
    agent's end is missing.
    """
    conf = f"last_call_timeout={LAST_CALL},ttl={ttl},join_timeout=120,close_timeout=5"
    budget = ("--max-restarts=1000000", "--restart-backoff=0")
    etcd = partial(clustered, version, 3)
    try:
        with (
            Launcher(folder) as launcher,
            site(launcher, etcd, nnodes, count, conf, *budget, pace=PACE) as found,
        ):
            yield found
            codes = found.end()
            found.check()
            if any(codes):
                raise RunError(f"agents ended with {codes}: {found.told()}")
    except AssertionError as error:
        raise RunError(str(error)) from None


# ---- changes


def changes(
    folder: Path, version: str, ttl: float, times: int, add: Callable[[str, float], None]
) -> None:
    """Change a job of three nodes repeatedly.

    `add` takes the name of each change, and the seconds until the job trained again with the nodes
    that it should have.
    """
    with _site(folder, version, ttl, "2:3", 3) as job:
        for host in job.hosts[:2]:
            job.start(host)
        job.await_training(2)
        _come(job, job.hosts[2], add, "third node joins")
        for number in range(times):
            say(f"changes: {number + 1} of {times}")
            for who in ("leader", "member"):
                for what, act in (("dies", _die), ("told to end", _stop), ("drained", _drain)):
                    time.sleep(ttl / 2)
                    victim = job.one(leads=who == "leader")
                    began = time.monotonic()
                    act(job, victim)
                    add(f"{who} {what}", job.await_training(2, began) - began)
                    _forget(job, victim)
                    plug_in_again(victim)
                    _come(job, victim, add, "replacement joins")


def _come(job: Site, host: Host, add: Callable[[str, float], None], name: str) -> None:
    time.sleep(REST)
    came = time.monotonic()
    job.start(host)
    add(name, job.await_training(len(job.hosts), came) - came)


def _die(job: Site, host: Host) -> None:
    job.kill_host(host)


def _stop(job: Site, host: Host) -> None:
    job.nodes[host.number].send(signal.SIGTERM)


def _drain(job: Site, host: Host) -> None:
    job.drain(host)


def _forget(job: Site, host: Host) -> None:
    """Require that an agent that left has ended."""
    node = job.nodes.pop(host.number, None)
    if node:
        node.end()


# ---- what is not to be noticed


def members_die(folder: Path, version: str, ttl: float, times: int) -> Calm:
    """Kill one of three members of etcd at random moments of a job, `times` times."""

    def strike(job: Site) -> None:
        for number in range(times):
            if number % 10 == 0:
                say(f"members of etcd: {number} of {times}")
            time.sleep(random.uniform(0, 1))
            random.choice(job.etcd.members).kill()
            time.sleep(random.uniform(0, 1))
            job.start_etcd()

    return _undisturbed(folder, version, ttl, times, strike)


def outage(folder: Path, version: str, ttl: float, seconds: float) -> Calm:
    """Stop all members of etcd for `seconds` seconds."""

    def strike(job: Site) -> None:
        say(f"outage: {seconds:g} s")
        job.stop_etcd()
        time.sleep(seconds)
        job.start_etcd()

    return _undisturbed(folder, version, ttl, 1, strike)


def _undisturbed(
    folder: Path, version: str, ttl: float, strikes: int, strike: Callable[[Site], None]
) -> Calm:
    with _site(folder, version, ttl, "2:3", 3) as job:
        for host in job.hosts:
            job.start(host)
        job.await_training(3)
        time.sleep(ttl)
        before, began = _words(job), time.monotonic()
        strike(job)
        time.sleep(2 * ttl)
        ended = job.await_steps(3, time.monotonic())
        return Calm(
            seconds=ended - began,
            strikes=strikes,
            rounds=len(job.rounds()) - 1,
            longest_pause=max(life.pause(began, ended) for life in job.lives()),
            words=_words(job) - before,
        )


def _words(job: Site) -> int:
    return sum(len(node.output.splitlines()) for node in job.nodes.values())


# ---- a node that is cut off


def partition(folder: Path, version: str, ttl: float, seconds: float, leads: bool) -> Partition:
    """Cut one node off from the others and from etcd, and heal it after `seconds` seconds."""
    with _site(folder, version, ttl, "2:3", 3) as job:
        for host in job.hosts:
            job.start(host)
        job.await_training(3)
        time.sleep(ttl)
        victim = job.one(leads=leads)
        say(f"partition: {seconds:g} s, {'leader' if leads else 'member'}")
        cut = time.monotonic()
        cut_off(victim)
        others = job.await_training(2, cut)
        time.sleep(max(0.0, cut + seconds - time.monotonic()))
        stopped = max(life.last for life in job.lives() if life.host == victim.number)
        healed = time.monotonic()
        plug_in_again(victim)
        rejoined = job.await_training(3, healed)
        found = overlaps(job.lives())
    return Partition(stopped - cut, others - cut, rejoined - healed, found)


# ---- faults by chance


def storm(folder: Path, version: str, ttl: float, times: int, seed: int) -> Storm:
    """Inject one or two random faults at once, `times` times.

    After each time all four nodes must train again.
    """
    chance, done = random.Random(seed), Storm()
    with _site(folder, version, ttl, "2:4", 4) as job:
        for host in job.hosts:
            job.start(host)
        job.await_training(4)
        for number in range(times):
            time.sleep(chance.uniform(0, ttl))
            say(f"faults: {number + 1} of {times}: {_strike(job, ttl, chance, done)}")
            job.await_steps(4, time.monotonic())
            done.overlaps = overlaps(job.lives())
            if done.overlaps:
                raise RunError(f"{done.overlaps}, seed {seed}: {job.told()}")
        done.rounds, done.workers = len(job.rounds()), len(job.lives())
    return done


def _strike(job: Site, ttl: float, chance: random.Random, done: Storm) -> str:
    """Start one or two faults, wait, undo them, and return their names."""
    count = chance.choice((1, 1, 2))
    chosen = chance.sample(sorted(_FAULTS), count)
    undo = []
    for name, host in zip(chosen, chance.sample(list(job.hosts), count), strict=True):
        undo.append(_FAULTS[name](job, host))
        done.faults[name] = done.faults.get(name, 0) + 1
    time.sleep(chance.uniform(0, 2 * ttl))
    for each in chance.sample(undo, count):
        each()
    return " and ".join(chosen)


Undo = Callable[[], object]


def _host_dies(job: Site, host: Host) -> Undo:
    job.kill_host(host)
    return lambda: job.revive(host)


def _agent_dies(job: Site, host: Host) -> Undo:
    job.nodes[host.number].send(signal.SIGKILL)
    return lambda: _again(job, host)


def _agent_is_told_to_end(job: Site, host: Host) -> Undo:
    job.nodes[host.number].send(signal.SIGTERM)
    return lambda: _again(job, host)


def _again(job: Site, host: Host) -> None:
    _forget(job, host)
    job.start(host)


def _agent_is_paused(job: Site, host: Host) -> Undo:
    node = job.nodes[host.number]
    node.send(signal.SIGSTOP)
    return lambda: node.send(signal.SIGCONT)


def _link_fails(job: Site, host: Host) -> Undo:
    cut_off(host)
    return lambda: plug_in_again(host)


def _worker_dies(job: Site, host: Host) -> Undo:
    for pid in job.workers(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return lambda: None


def _etcd_member_dies(job: Site, host: Host) -> Undo:
    job.etcd.members[host.number % len(job.etcd.members)].kill()
    return job.start_etcd


def _etcd_is_away(job: Site, host: Host) -> Undo:
    job.stop_etcd()
    return job.start_etcd


def _etcd_is_silent(job: Site, host: Host) -> Undo:
    job.silence_etcd()
    return job.start_etcd


_FAULTS: dict[str, Callable[[Site, Host], Undo]] = {
    "host dies": _host_dies,
    "agent dies": _agent_dies,
    "agent is told to end": _agent_is_told_to_end,
    "agent is paused": _agent_is_paused,
    "link fails": _link_fails,
    "worker dies": _worker_dies,
    "a member of etcd dies": _etcd_member_dies,
    "etcd is away": _etcd_is_away,
    "etcd is silent": _etcd_is_silent,
}
