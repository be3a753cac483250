"""Jobs on several hosts over a real etcd: hosts die, are asked to go, come and come back."""

from __future__ import annotations

import signal
import time

import pytest
from support.hosts import needs_hosts
from support.sites import Site

from torshrun import exit_codes

pytestmark = [needs_hosts, pytest.mark.netns, pytest.mark.etcd]


either = pytest.mark.parametrize("leads", [True, False], ids=["leader", "member"])
over_3_4 = pytest.mark.parametrize("three", [("3.4", 1)], indirect=True, ids=["3.4"])
over_3_5 = pytest.mark.parametrize("three", [("3.5", 1)], indirect=True, ids=["3.5"])


@pytest.mark.parametrize(
    ("three", "leads"),
    [(("3.4", 1), False), (("3.5", 3), True)],
    indirect=["three"],
    ids=["3.4, member", "3.5, three members, leader"],
)
def test_when_a_host_dies_the_others_train_again_and_another_takes_its_place(
    three: Site, leads: bool
) -> None:
    three.start_all()
    victim = three.one(leads=leads)
    died = time.monotonic()
    three.kill_host(victim)
    three.await_training(2, since=died)
    back = time.monotonic()
    three.revive(victim)
    three.await_training(3, since=back)
    assert three.end() == [0, 0, 0]
    three.check()


@over_3_4
@either
def test_a_node_that_is_told_to_end_leaves_at_once(three: Site, leads: bool) -> None:
    three.start_all()
    goes = three.nodes.pop(three.one(leads=leads).number)
    told = time.monotonic()
    goes.send(signal.SIGTERM)
    three.await_training(2, since=told)
    assert goes.end()[0] == exit_codes.PREEMPTED
    assert three.end() == [0, 0]
    three.check()


@over_3_5
@either
def test_a_node_that_is_drained_leaves_at_once(three: Site, leads: bool) -> None:
    three.start_all()
    victim = three.one(leads=leads)
    told = time.monotonic()
    three.drain(victim)
    three.await_training(2, since=told)
    goes = three.nodes.pop(victim.number)
    assert goes.end()[0] == exit_codes.PREEMPTED
    assert three.end() == [0, 0]
    three.check()


@over_3_4
def test_a_third_node_is_let_in(three: Site) -> None:
    for host in three.hosts[:2]:
        three.start(host)
    three.await_training(2)
    came = time.monotonic()
    three.start(three.hosts[2])
    three.await_training(3, since=came)
    assert three.end() == [0, 0, 0]
    three.check()
