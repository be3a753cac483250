"""Where lost shards come from: whatever dies at whatever moment, the newest state is there."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.elastic.neighbours import ring
from torsh_runtime.elastic.shard_plan import (
    NOTHING,
    Holding,
    ShardPlan,
    newest_in_memory,
    plan,
)

TURNS = 2


class Rank:
    """One rank as its program and memory go on, a change of memory at a time."""

    def __init__(self) -> None:
        self.live = 0
        self.states: dict[int, int] = {0: 0}
        self.gradients: dict[int, int] = {}
        self.voted = NOTHING
        self.doing = self.steps()

    def steps(self) -> Iterator[str]:
        """Yield "vote" where the rank waits for the others' votes, and else ""."""
        while True:
            number = self.live
            if number not in self.states.values():  # written while the step computes
                self.states.pop(number % TURNS, None)
                yield ""
                self.states[number % TURNS] = number
            yield ""
            self.gradients.pop(number % TURNS, None)
            yield ""
            self.gradients[number % TURNS] = number
            self.voted = number
            yield "vote"
            self.live = number + 1

    def held(self, is_dead: bool) -> Holding:
        memory = tuple(self.states.values()), tuple(self.gradients.values())
        return Holding(NOTHING if is_dead else self.live, *memory)

    def begin_at(self, number: int) -> None:
        self.live, self.voted = number, NOTHING
        self.doing = self.steps()


def advance(ranks: list[Rank], random: Random) -> None:
    """Let any rank go on, past a vote only if all have voted."""
    rank = random.choice(ranks)
    if rank.voted == rank.live and any(each.voted < rank.live for each in ranks):
        return
    next(rank.doing)


def recover(ranks: list[Rank], dead: set[int]) -> ShardPlan:
    held = [each.held(number in dead) for number, each in enumerate(ranks)]
    newest = max(each.live for number, each in enumerate(ranks) if number not in dead)
    found = plan(held)
    assert found.number == newest
    assert sorted([*found.live, *found.loading, *found.stepping]) == [*range(len(ranks))]
    assert not found.lost
    assert not dead & {*found.live}
    for each in ranks:
        each.begin_at(newest)
    return found


@given(size=st.integers(2, 5), seed=st.integers(0, 1 << 32), losses=st.integers(1, 8))
def test_whoever_dies_at_any_moment_the_newest_state_is_there(
    size: int, seed: int, losses: int
) -> None:
    random, ranks = Random(seed), [Rank() for _ in range(size)]
    for _ in range(losses):
        for _ in range(random.randrange(12 * size)):
            advance(ranks, random)
        dead = {*random.sample(range(size), random.randrange(1, size))}
        recover(ranks, dead)


@given(size=st.integers(2, 4), seed=st.integers(0, 1 << 32))
def test_one_damaged_copy_is_passed_over_once_the_state_is_kept(size: int, seed: int) -> None:
    random, ranks = Random(seed), [Rank() for _ in range(size)]
    for _ in range(random.randrange(8 * size, 30 * size)):
        advance(ranks, random)
    victim = random.randrange(size)
    newest = max(each.live for number, each in enumerate(ranks) if number != victim)
    rank = ranks[victim]
    damaged = random.choice([rank.states, rank.gradients])
    if rank.live > newest:  # only the victim has heard of the last vote
        return
    if newest not in rank.states.values() or newest == 0 or not damaged:
        return
    damaged.pop(random.choice([*damaged]))
    recover(ranks, {victim})


def test_a_shard_that_is_nowhere_whole_is_named() -> None:
    found = plan([Holding(4), Holding(NOTHING, (3, 2), (2,)), Holding(NOTHING, (4,))])
    assert found == ShardPlan(4, live=(0,), loading=(2,), stepping=(), lost=(1,))


def test_a_rank_that_missed_the_vote_steps_once_more() -> None:
    found = plan([Holding(4), Holding(3, (3, 2), (3, 2)), Holding(NOTHING, (3,), (3,))])
    assert found == ShardPlan(4, live=(0,), loading=(), stepping=(1, 2), lost=())


@given(size=st.integers(2, 5), seed=st.integers(0, 1 << 32))
def test_when_all_are_lost_no_step_is_that_a_rank_has_gone_beyond(size: int, seed: int) -> None:
    random, ranks = Random(seed), [Rank() for _ in range(size)]
    begun = {0}  # the steps that any rank has begun, before which there is what all have alike
    for _ in range(random.randrange(30 * size)):
        advance(ranks, random)
        begun |= {each.live for each in ranks if random.random() < 0.3}
    held = [each.held(is_dead=True) for each in ranks]
    recent = {each for each in begun if each >= max(begun) - 1}
    assert newest_in_memory(held, recent) == max(recent)


def test_memory_without_all_ranks_or_what_they_have_alike_has_nothing() -> None:
    held = [Holding(NOTHING, (3, 4), (3,)), Holding(NOTHING, (3,), (3,))]
    assert newest_in_memory(held, (3, 4)) == 4
    assert newest_in_memory(held, (3,)) == 3
    assert newest_in_memory(held, (5,)) == NOTHING
    assert newest_in_memory([*held, Holding(NOTHING)], (3, 4)) == NOTHING


def test_copies_go_around_the_nodes() -> None:
    assert ring([0, 0, 0], 1) is None
    assert ring([0, 0, 1], 1) is None
    nodes = [0, 0, 1, 1, 2, 2]
    found = [ring(nodes, rank) for rank in range(6)]
    assert found == [(2, 4), (3, 5), (4, 0), (5, 1), (0, 2), (1, 3)]
