"""Random collectives and messages, and a rank that is killed, stopped or cut off in their midst.

A short form runs with the other tests; `scripts/soak` runs 500 rounds.
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from support.hosts import Host, cut_off, needs_hosts, plug_in_again, plugged, run_on_hosts
from support.strikes import PROGRAMS, Strike, Verdict, World, in_ever_new_groups, run_struck
from support.worlds import run_processes

from torsh_runtime.backends.native.settings import HEARTBEAT_VARIABLE, STRATEGIES, STRATEGY_VARIABLE

ROUNDS, ROUNDS_IN_FULL = 1, 36
"""Of each of the fifteen tests."""
LONG, SHORT = 60.0, 1.5
"""Seconds that an operation may take; a stopped rank is noticed after them."""

Verdicts = dict[int, list[Verdict]]
"""Each survivor's."""


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    """What each round chooses with."""
    rounds = ROUNDS_IN_FULL if request.config.getoption("--soak") else ROUNDS
    return (random.Random(f"{request.node.name} {number}") for number in range(rounds))


def kill(rank: int, number: signal.Signals, pids: list[int]) -> None:
    os.kill(pids[rank], number)


def verdicts_of(
    world: World, ranks: int, choose: random.Random, fault: signal.Signals
) -> tuple[int, Verdicts]:
    """A random rank, and what the others say when that happens to it."""
    victim = choose.randrange(ranks)
    strike = Strike(partial(kill, victim, fault), [victim], choose.uniform(0.0, 0.3))
    program, seed = choose.choice(PROGRAMS), choose.randrange(1 << 32)
    return victim, run_struck(world, ranks, program, seed, strike)


def on(victim: int, verdicts: Verdicts) -> Iterator[tuple[int, Verdict]]:
    """Those of groups that it was in: others have no part in its fate."""
    for rank, found in verdicts.items():
        for verdict in found:
            if victim in verdict.members:
                yield rank, verdict


def account(verdicts: Verdicts) -> str:
    return "\n".join(
        f"rank {rank}, in a group of {verdict.members}: {verdict.text}"
        for rank, found in verdicts.items()
        for verdict in found
    )


def check_killed(world: World, ranks: int, choose: random.Random) -> None:
    victim, verdicts = verdicts_of(world, ranks, choose, signal.SIGKILL)
    for _, verdict in on(victim, verdicts):
        assert (verdict.kind, verdict.culprits) == ("PeerLost", (victim,)), account(verdicts)


def check_stopped(
    world: World, ranks: int, choose: random.Random, nodes: Sequence[object] | None = None
) -> None:
    """Of a message only its own sender is known, who may wait for the stopped one in turn."""
    victim, verdicts = verdicts_of(world, ranks, choose, signal.SIGSTOP)
    for rank, verdict in on(victim, verdicts):
        assert verdict.kind == "CommTimeout", account(verdicts)
        if victim not in verdict.culprits:
            assert re.search("(recv|send) timed out", verdict.text), account(verdicts)
        elif nodes is None or nodes[rank] is nodes[victim]:
            assert "stopped" in verdict.text, account(verdicts)


# --- in a node ---


def node_of(ranks: int, timeout: float) -> World:
    return lambda body, meanwhile: run_processes(ranks, body, timeout, meanwhile)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_killed_rank_is_named_by_all(ranks: int, seeds: Iterator[random.Random]) -> None:
    for choose in seeds:
        check_killed(node_of(ranks, LONG), ranks, choose)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_stopped_rank_is_named_by_all(ranks: int, seeds: Iterator[random.Random]) -> None:
    for choose in seeds:
        check_stopped(node_of(ranks, SHORT), ranks, choose)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_killed_while_groups_are_made_is_named(
    ranks: int, seeds: Iterator[random.Random]
) -> None:
    """One that has not even come can only be missed. Rank 0 serves the store here."""
    for choose in seeds:
        victim = choose.randrange(1, ranks)
        act = partial(kill, victim, signal.SIGKILL)
        strike = Strike(act, [victim], choose.uniform(0.0, 0.3))
        seed = choose.randrange(1 << 32)
        verdicts = run_struck(node_of(ranks, SHORT), ranks, in_ever_new_groups, seed, strike)
        for _, verdict in on(victim, verdicts):
            assert verdict.kind in ("PeerLost", "CommTimeout"), account(verdicts)
            assert verdict.culprits == (victim,), account(verdicts)


# --- between nodes ---

LAYOUTS = [(1, 1), (2, 2), (2, 1)]
"""Ranks of the first host and of the second."""


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    with plugged(2) as found:
        yield found


def on_hosts(places: Sequence[Host], timeout: float) -> World:
    return lambda body, meanwhile: run_on_hosts(places, body, timeout, meanwhile=meanwhile)


def placed(hosts: Sequence[Host], layout: tuple[int, int]) -> list[Host]:
    return [host for host, ranks in zip(hosts, layout, strict=True) for _ in range(ranks)]


def set_environment(monkeypatch: pytest.MonkeyPatch, choose: random.Random) -> None:
    """Every strategy has its turn, and a machine that is gone is noticed soon."""
    monkeypatch.setenv(STRATEGY_VARIABLE, choose.choice(STRATEGIES))
    monkeypatch.setenv(HEARTBEAT_VARIABLE, "1")


@needs_hosts
@pytest.mark.netns
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_rank_is_named_on_all_hosts(
    hosts: list[Host],
    layout: tuple[int, int],
    seeds: Iterator[random.Random],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = placed(hosts, layout)
    for choose in seeds:
        set_environment(monkeypatch, choose)
        check_killed(on_hosts(places, LONG), len(places), choose)


@needs_hosts
@pytest.mark.netns
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_stopped_rank_is_named_on_all_hosts(
    hosts: list[Host],
    layout: tuple[int, int],
    seeds: Iterator[random.Random],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = placed(hosts, layout)
    for choose in seeds:
        set_environment(monkeypatch, choose)
        check_stopped(on_hosts(places, SHORT), len(places), choose, places)


@needs_hosts
@pytest.mark.netns
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_sides_of_a_cut_name_the_other(
    hosts: list[Host],
    layout: tuple[int, int],
    seeds: Iterator[random.Random],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their operations may take much longer than the heartbeat."""
    places = placed(hosts, layout)
    for choose in seeds:
        set_environment(monkeypatch, choose)
        strike = Strike(lambda pids: cut_off(hosts[1]), [], choose.uniform(0.0, 0.3))
        program, seed = choose.choice(PROGRAMS), choose.randrange(1 << 32)
        try:
            verdicts = run_struck(on_hosts(places, LONG), len(places), program, seed, strike)
        finally:
            plug_in_again(hosts[1])
        for rank, found in verdicts.items():
            for verdict in found:
                there = [each for each in verdict.members if places[each] is not places[rank]]
                assert verdict.kind == "PeerLost", account(verdicts)
                assert not there or verdict.culprits[0] in there, account(verdicts)
