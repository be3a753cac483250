"""Decides how workers leave a round and keep their processes. Pure, a part of the machine.

They do when workers are lost, which are replaced, and when other nodes leave the job or come.

The rendezvous decides which round is over and when the next begins, as other nodes may have a part
in it. This node tells it how it stands.
"""

from __future__ import annotations

import os
from dataclasses import replace

from torshrun.agent import protocol
from torshrun.agent.states import Able, Mending, Running, Step
from torshrun.config.job import LaunchConfig
from torshrun.rendezvous import base

Followed = protocol.WorkerEnded | protocol.Parked | protocol.Joined | protocol.Left
"""The events of which follow() keeps account."""


def joined_or_left(state: Able, event: protocol.Joined | protocol.Left) -> Able:
    """Note that a worker can go on without others, or cannot any more."""
    own = {event.rank}
    fresh, joined, fixed = state.fresh - own, state.joined - own, state.fixed - own
    if isinstance(event, protocol.Joined):
        state = replace(state, attempt=replace(state.attempt, is_dispensable=False))
        joined |= own & state.alive
        fixed |= own & joined if event.is_fixed else set()
    elif event.is_early:
        state = replace(state, early=state.early | own)
    failed = frozenset(each for each in state.failed if each[0] != event.rank)
    return replace(state, joined=joined, fresh=fresh, fixed=fixed, failed=failed)


def tell_lasting(
    config: LaunchConfig, state: Able
) -> tuple[Able, tuple[protocol.TellLasting, ...]]:
    """Tell the rendezvous whether the workers here can go on among other nodes, unless it knows."""
    able = state.joined | state.fresh
    lost = state.lost if isinstance(state, Mending) else frozenset[int]()
    lasting: base.Lasting = ""
    if len(able | lost) == config.nproc_per_node:
        lasting = "same" if state.fixed else "any"
    if config.is_alone or lasting == state.lasting:
        return state, ()
    return replace(state, lasting=lasting), (protocol.TellLasting(lasting),)


def tell_exited(config: LaunchConfig, state: Running, rank: int) -> tuple[protocol.TellExited, ...]:
    """Tell those who may wait for a worker that has ended well, if it did so before the last
    step, or others here have not left yet."""
    on_all_nodes = not config.is_alone and rank in state.joined | state.early
    if not on_all_nodes and not state.joined - {rank}:
        return ()
    return (protocol.TellExited(rank, on_all_nodes),)


def owed_notices(
    state: Running, event: protocol.Joined | protocol.Left
) -> tuple[protocol.PassOn, ...]:
    """Return the notices for a replacement that has joined, and so handles what it ever will."""
    if not isinstance(event, protocol.Joined) or event.rank not in state.fresh:
        return ()
    owed = sorted(signo for rank, signo in state.owed if rank == event.rank)
    return tuple(protocol.PassOn(signo, handled_only=True, rank=event.rank) for signo in owed)


def can_go_on_without(config: LaunchConfig, state: Running, rank: int) -> bool:
    """Return whether the others can meet a replacement of this rank.

    If nobody here has the state of the training, workers of other nodes may, or all have copies.
    """
    survivors = state.alive - {rank}
    is_known = not config.is_alone and rank in state.joined | state.fresh
    return (
        state.attempt.restarts < config.max_restarts
        and rank in state.alive
        and not state.attempt.refused
        and _is_able(config, state, rank)
        and (is_known or config.recover or bool(survivors & state.joined))
    )


def is_replaceable(config: LaunchConfig, state: Running, event: protocol.WorkerEnded) -> bool:
    """Return whether a worker that has ended so may be replaced. A copy is not if the worker has
    ended by itself, as it would do the same."""
    has_copy = os.WIFSIGNALED(event.status) and event.rank in state.joined | state.fresh
    return has_copy or not config.recover


def is_failure(config: LaunchConfig, state: Running, event: Followed) -> bool:
    """Return whether a worker has ended that cannot be replaced, while survivors park."""
    return isinstance(event, protocol.WorkerEnded) and not is_replaceable(config, state, event)


def fails_repeatedly(state: Running, event: protocol.WorkerEnded) -> bool:
    """Return whether a replacement has ended like the one before, by itself and before it joined.

    What it does before join(), such as a collective, it can do only in a start of all workers.
    """
    return event.rank in state.fresh and (event.rank, event.status) in state.failed


def lose(config: LaunchConfig, state: Running, event: protocol.WorkerEnded) -> Step:
    """End the round as this worker was lost, which others can go on without."""
    failed = frozenset(each for each in state.failed if each[0] != event.rank)
    if event.rank in state.fresh and not os.WIFSIGNALED(event.status):
        failed |= {(event.rank, event.status)}
    return begin(config, replace(state, failed=failed), event.rank)


def _is_able(config: LaunchConfig, state: Running, lost: int = -1) -> bool:
    """Return whether the workers here, but for a lost one, can meet others in the next round."""
    return (
        not state.failing
        and not state.attempt.noticed
        and len(state.alive) == config.nproc_per_node
        and state.alive - {lost} <= state.joined | state.fresh
    )


def culprits(config: LaunchConfig, state: Running, event: protocol.Hung) -> tuple[int, ...]:
    """Return whom to kill when workers hang, so that the others continue; () if they cannot.

    While a replacement has not joined, the others wait for it.
    """
    if event.place == "elsewhere" and not config.is_alone:
        return ()
    found = state.fresh or {event.suspect}
    able = all(can_go_on_without(config, state, rank) for rank in found)
    return tuple(sorted(found)) if able else ()


def defers(config: LaunchConfig, state: Running, event: protocol.Hung) -> bool:
    """Return whether a hang is to be ended by another node's agent, which sees it, too.

    It has as long as a hang takes to be noticed. After workers of another node were replaced, all
    wait for those without saying so.
    """
    is_mended = state.attempt.round > state.attempt.since and not state.fresh
    is_elsewhere = event.place == "elsewhere" or (event.place == "unknown" and is_mended)
    is_first = not config.is_alone and not state.has_deferred
    return is_first and is_elsewhere and bool(state.joined) and _is_able(config, state)


def begin(config: LaunchConfig, state: Running, *lost: int, at_commit: bool = False) -> Step:
    """End the round for the workers here that survive, which park."""
    alive = state.alive.difference(lost)
    mending = Mending(
        attempt=state.attempt,
        alive=alive,
        joined=state.joined & alive,
        fresh=state.fresh & alive,
        fixed=state.fixed & alive,
        lasting=state.lasting,
        lost=frozenset(lost),
        failed=state.failed,
        awaited=state.joined & alive,
        at_commit=at_commit,
    )
    mending, told = tell(config, mending)
    ahead = (protocol.StartAhead(lost),) if lost else ()
    return mending, (protocol.EndRound(at_commit), *told, *ahead)


def end_round(config: LaunchConfig, state: Running, event: base.RoundOver) -> Step:
    """Handle that the round is over, as workers of another node were lost or nodes change."""
    if isinstance(state, Mending):
        return (state, ()) if event.at_commit else hurry(state)
    if state.failing:  # a failure of its own is being reported
        return state, ()
    if not _is_able(config, state):
        return state, (protocol.TellStanding("unable"),)
    return begin(config, state, at_commit=event.at_commit)


def hurry(state: Mending) -> tuple[Mending, tuple[protocol.EndRound, ...]]:
    """Have workers leave the round at once that were to do so at their next commit."""
    if not state.at_commit:
        return state, ()
    return replace(state, at_commit=False), (protocol.EndRound(),)


def tell(config: LaunchConfig, state: Mending) -> tuple[Mending, tuple[protocol.TellStanding, ...]]:
    """Tell the rendezvous how this node stands, unless it knows."""
    standing: base.Standing = "parked" if state.joined or config.recover else "bare"
    if state.awaited:
        standing = "lost"
    telling = standing, bool(state.lost)
    if telling == state.told or (standing == "lost" and not state.lost):
        return state, ()
    return replace(state, told=telling), (protocol.TellStanding(*telling),)


def follow(state: Mending, event: Followed) -> Mending:
    """Note what has become of a worker while survivors park."""
    if isinstance(event, protocol.Joined | protocol.Left):
        state = joined_or_left(state, event)
        commits = {event.rank} if state.at_commit else frozenset[int]()
        return replace(state, awaited=(state.awaited | commits) & state.joined)
    awaited = state.awaited - {event.rank}
    if isinstance(event, protocol.Parked):
        return replace(state, awaited=awaited)
    return replace(
        state,
        alive=state.alive - {event.rank},
        joined=state.joined - {event.rank},
        fresh=state.fresh - {event.rank},
        fixed=state.fixed - {event.rank},
        lost=state.lost | {event.rank},
        awaited=awaited,
    )


def is_hopeless(config: LaunchConfig, state: Mending) -> bool:
    """Return whether nobody is left to give its state, or somebody would meet nobody."""
    is_bare = config.is_alone and not state.joined and not config.recover
    return is_bare or not state.alive <= state.joined | state.fresh


def has_enough_others(config: LaunchConfig, place: base.NodeAssignment) -> bool:
    """Return whether the job has enough nodes without this one."""
    return place.num_nodes > config.min_nodes


def next_round(config: LaunchConfig, state: Mending, place: base.NodeAssignment) -> Step:
    """Begin the next round, with replacements of the lost workers."""
    is_dispensable = state.attempt.is_dispensable and has_enough_others(config, place)
    attempt = replace(
        state.attempt,
        round=place.round,
        restarts=place.restarts,
        is_dispensable=is_dispensable,
    )
    running = Running(
        attempt=attempt,
        alive=state.alive | state.lost,
        joined=state.joined,
        fresh=state.fresh | state.lost,
        failed=state.failed,
        fixed=state.fixed,
        lasting=state.lasting or ("any" if place.kept else ""),
        owed=frozenset((rank, signo) for rank in state.lost for signo in attempt.noticed),
    )
    return running, (protocol.ReplaceWorkers(tuple(sorted(state.lost)), place),)
