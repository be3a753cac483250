"""Jobs on several hosts over a real etcd: links are cut, agents paused, etcd away, clocks wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import pytest
from support.clocks import ahead, wrong_clock_or_skip
from support.hosts import cut_off, needs_hosts, plug_in_again
from support.sites import TTL, Site

pytestmark = [needs_hosts, pytest.mark.netns, pytest.mark.etcd]

HOUR = 3600
OUTAGE = 1.5 * TTL
STALL = 1.0
"""Seconds for which a worker may stand still because the machine is busy."""


either = pytest.mark.parametrize("leads", [True, False], ids=["leader", "member"])
over_3_4 = pytest.mark.parametrize("three", [("3.4", 1)], indirect=True, ids=["3.4"])
over_3_5 = pytest.mark.parametrize("three", [("3.5", 1)], indirect=True, ids=["3.5"])
over_three = pytest.mark.parametrize(
    "three", [("3.5", 3)], indirect=True, ids=["3.5, three members"]
)


def wall_clock(environ: Sequence[str]) -> float:
    """As a program with these variables sees it."""
    program = [sys.executable, "-c", "import time; print(time.time())"]
    return float(subprocess.run(["env", *environ, *program], stdout=-1, check=True).stdout)


@over_three
@either
def test_a_node_that_is_cut_off_stops_before_the_others_go_on_and_comes_back(
    three: Site, leads: bool
) -> None:
    three.start_all()
    victim = three.one(leads=leads)
    cut = time.monotonic()
    cut_off(victim)
    three.await_training(2, since=cut)
    assert not three.workers(victim)
    healed = time.monotonic()
    plug_in_again(victim)
    three.await_training(3, since=healed)
    assert three.end() == [0, 0, 0]
    three.check()


@over_3_4
def test_a_paused_agent_loses_its_workers_and_comes_back(three: Site) -> None:
    three.start_all()
    victim = three.one(leads=False)
    there, paused = three.workers(victim), time.monotonic()
    three.nodes[victim.number].send(signal.SIGSTOP)
    three.await_training(2, since=paused)
    assert there
    assert not three.workers(victim)
    woken = time.monotonic()
    three.nodes[victim.number].send(signal.SIGCONT)
    three.await_training(3, since=woken)
    assert three.end() == [0, 0, 0]
    three.check()


@pytest.mark.parametrize(
    ("three", "end"),
    [(("3.4", 1), Site.silence_etcd), (("3.5", 3), Site.stop_etcd)],
    indirect=["three"],
    ids=["3.4, paused", "3.5, three members, killed"],
)
def test_an_outage_of_all_of_etcd_disturbs_no_worker(
    three: Site, end: Callable[[Site], None]
) -> None:
    three.start_all()
    gone = time.monotonic()
    end(three)
    time.sleep(OUTAGE)
    three.start_etcd()
    time.sleep(TTL)
    back = time.monotonic()
    assert three.end() == [0, 0, 0]
    three.check()
    assert three.rounds() == [0], three.told()
    assert max(life.pause(gone, back) for life in three.lives()) < STALL


@over_three
def test_members_of_etcd_may_die_one_after_the_other(three: Site) -> None:
    three.start_all()
    began = time.monotonic()
    for victim in three.etcd.members:
        victim.kill()
        time.sleep(0.5)
        three.start_etcd()
    time.sleep(TTL)
    ended = time.monotonic()
    assert three.end() == [0, 0, 0]
    three.check()
    assert three.rounds() == [0], three.told()
    assert max(life.pause(began, ended) for life in three.lives()) < STALL


@over_3_5
def test_a_node_dies_while_etcd_is_away(three: Site) -> None:
    three.start_all()
    victim = three.one(leads=False)
    three.stop_etcd()
    died = time.monotonic()
    three.kill_host(victim)
    time.sleep(OUTAGE)
    three.start_etcd()
    three.await_training(2, since=died)
    assert three.end() == [0, 0]
    three.check()


@over_3_4
def test_clocks_that_are_an_hour_apart_make_no_difference(three: Site) -> None:
    library = wrong_clock_or_skip(three.folder)
    assert wall_clock(ahead(library, HOUR)) > time.time() + HOUR / 2
    for host, offset in zip(three.hosts, (-HOUR, 0, HOUR), strict=True):
        three.start(host, *ahead(library, offset))
    three.await_training(3)
    time.sleep(TTL)
    assert three.rounds() == [0], three.told()
    died = time.monotonic()
    three.kill_host(three.leader())
    three.await_training(2, since=died)
    assert three.end() == [0, 0]
    three.check()


@over_3_5
def test_a_host_that_is_paused_as_a_whole_trains_on_for_a_moment_at_most(three: Site) -> None:
    three.start_all()
    victim = three.leader()
    there, paused = three.workers(victim), time.monotonic()
    three.signal(victim, signal.SIGSTOP)
    three.await_training(2, since=paused)
    woken = time.monotonic()
    three.signal(victim, signal.SIGCONT)
    three.await_training(3, since=woken)
    (late,) = (life for life in three.lives() if life.pid in there)
    assert late.last < woken + STALL
    assert three.end() == [0, 0, 0]
