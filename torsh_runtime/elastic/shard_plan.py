"""Decides from where ranks that have lost their state get it again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NOTHING = -1
"""In place of the number of a step, for what is not there."""


class Holding(NamedTuple):
    """Tells what one rank has. A state has the number of the step that comes next."""

    live: int
    """The state that its process has whole, or NOTHING."""
    versions: tuple[int, ...] = ()
    """The states of its shard that are whole in the node's memory."""
    gradients: tuple[int, ...] = ()
    """The steps of which its gradients are whole in the node's memory."""


@dataclass(frozen=True)
class ShardPlan:
    """Describes how all ranks come to have the state of one step."""

    number: int
    """The state that all ranks are to have."""
    live: tuple[int, ...]
    """The ranks that have it. They give the others what all ranks have alike."""
    loading: tuple[int, ...]
    """The ranks that take it from their versions in memory."""
    stepping: tuple[int, ...]
    """The ranks that take the version before it, and let the optimizer step once more."""
    lost: tuple[int, ...]
    """The ranks whose shard is nowhere whole. If there is any, the state is lost."""


def plan(holdings: Sequence[Holding], number: int = NOTHING) -> ShardPlan:
    """Plan how all ranks come to have the newest state that any process has whole, or else the
    state `number`."""
    number = max(number, *(each.live for each in holdings))
    ways: dict[str, list[int]] = {"live": [], "loading": [], "stepping": [], "lost": []}
    for rank, each in enumerate(holdings):
        ways[_way(each, number)].append(rank)
    return ShardPlan(number, *(tuple(ranks) for ranks in ways.values()))


def newest_in_memory(holdings: Sequence[Holding], alike: Collection[int]) -> int:
    """Return the newest state that all ranks can have from memory, or NOTHING.

    alike: the steps before which there is what all ranks have alike.
    """
    for number in sorted(alike, reverse=True):
        if not plan([each._replace(live=NOTHING) for each in holdings], number).lost:
            return number
    return NOTHING


def _way(held: Holding, number: int) -> str:
    if held.live == number:
        return "live"
    if number in held.versions:
        return "loading"
    before = number - 1
    return "stepping" if before in held.versions and before in held.gradients else "lost"
