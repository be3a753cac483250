"""Decides how lost workers are replaced while the others continue. Pure, a part of the machine."""

from __future__ import annotations

from dataclasses import replace

from torshrun.agent import protocol
from torshrun.agent.states import Able, Mending, Running, Step
from torshrun.config.job import LaunchConfig

Followed = protocol.WorkerEnded | protocol.Parked | protocol.Joined | protocol.Left
"""The events of which follow() keeps account."""


def joined_or_left(state: Able, event: protocol.Joined | protocol.Left) -> Able:
    """Note that a worker can go on without others, or cannot any more."""
    fresh, joined = state.fresh - {event.rank}, state.joined - {event.rank}
    if isinstance(event, protocol.Joined):
        joined |= {event.rank} & state.alive
    return replace(state, joined=joined, fresh=fresh)


def owed_notices(
    state: Running, event: protocol.Joined | protocol.Left
) -> tuple[protocol.PassOn, ...]:
    """Return the notices for a replacement that has joined, and so handles what it ever will."""
    if not isinstance(event, protocol.Joined) or event.rank not in state.fresh:
        return ()
    owed = sorted(signo for rank, signo in state.owed if rank == event.rank)
    return tuple(protocol.PassOn(signo, handled_only=True, rank=event.rank) for signo in owed)


def can_go_on_without(config: LaunchConfig, state: Running, rank: int) -> bool:
    """Return whether the others can meet a replacement of this rank."""
    survivors = state.alive - {rank}
    return (
        config.is_alone
        and not state.failing
        and not state.attempt.noticed
        and state.attempt.restarts < config.max_restarts
        and rank in state.alive
        and len(state.alive) == config.nproc_per_node
        and bool(survivors & state.joined)
        and survivors <= state.joined | state.fresh
    )


def culprits(config: LaunchConfig, state: Running, suspect: int) -> tuple[int, ...]:
    """Return whom to kill when workers hang, so that the others continue; () if they cannot.

    While a replacement has not joined, the others wait for it.
    """
    found = state.fresh or {suspect}
    able = all(can_go_on_without(config, state, rank) for rank in found)
    return tuple(sorted(found)) if able else ()


def begin(state: Running, rank: int) -> Step:
    """End the round for the survivors of this rank, which park."""
    alive = state.alive - {rank}
    mending = Mending(
        attempt=state.attempt,
        alive=alive,
        joined=state.joined & alive,
        fresh=state.fresh & alive,
        lost=frozenset({rank}),
        awaited=state.joined & alive,
    )
    return mending, (protocol.EndRound(),)


def follow(state: Mending, event: Followed) -> Mending:
    """Note what has become of a worker while survivors park."""
    if isinstance(event, protocol.Joined | protocol.Left):
        state = joined_or_left(state, event)
        return replace(state, awaited=state.awaited & state.joined)
    awaited = state.awaited - {event.rank}
    if isinstance(event, protocol.Parked):
        return replace(state, awaited=awaited)
    return replace(
        state,
        alive=state.alive - {event.rank},
        joined=state.joined - {event.rank},
        fresh=state.fresh - {event.rank},
        lost=state.lost | {event.rank},
        awaited=awaited,
    )


def is_hopeless(state: Mending) -> bool:
    """Return whether nobody is left to give its state, or somebody would meet nobody."""
    return not state.joined or not state.alive <= state.joined | state.fresh


def next_round(state: Mending) -> Step:
    """Begin the next round, with replacements of the lost workers."""
    before = state.attempt
    attempt = replace(before, round=before.round + 1, restarts=before.restarts + 1)
    running = Running(
        attempt=attempt,
        alive=state.alive | state.lost,
        joined=state.joined,
        fresh=state.fresh | state.lost,
        owed=frozenset((rank, signo) for rank in state.lost for signo in before.noticed),
    )
    return running, (protocol.ReplaceWorkers(tuple(sorted(state.lost))),)
