"""ElasticSampler: each sample exactly once, however many ranks there are and for how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.elastic import ElasticSampler
from torsh_runtime.errors import ConfigError


def samplers(ranks: int, state: dict[str, Any] | None, length: int, batch: int) -> Any:
    made = [ElasticSampler(length, batch, num_replicas=ranks, rank=r) for r in range(ranks)]
    for each in made:
        if state is not None:
            each.load_state_dict(state)
    return made


@given(
    st.integers(1, 60),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 6)), max_size=5),
)
def test_each_sample_is_taken_once_in_an_epoch(
    length: int, batch: int, rounds: list[tuple[int, int]]
) -> None:
    taken: list[int] = []
    state = None
    for ranks, batches in [*rounds, (2, 1000)]:
        made = samplers(ranks, state, length, batch)
        parts = zip(*(iter(each) for each in made), strict=True)
        for _ in range(batches):
            if made[0].epoch == 1 or (here := next(parts, None)) is None:
                break
            taken += [number for part in here for number in part]
        state = made[0].state_dict()
        assert all(each.state_dict() == state for each in made)
        if state["epoch"] == 1:
            break
    assert sorted(taken) == list(range(length))


def test_batches_do_not_depend_on_the_number_of_ranks() -> None:
    alone = list(ElasticSampler(50, 12, num_replicas=1, rank=0))
    shared = zip(*samplers(3, None, 50, 12), strict=True)
    assert [[n for part in parts for n in part] for parts in shared] == alone


def test_epochs_differ_and_seeds_too() -> None:
    sampler = ElasticSampler(50, 50, num_replicas=1, rank=0)
    first, second = [*sampler], [*sampler]
    assert first != second
    assert sampler.epoch == 2
    assert first != [*ElasticSampler(50, 50, seed=1, num_replicas=1, rank=0)]
    plain = ElasticSampler(5, 3, shuffle=False, drop_last=True, num_replicas=1, rank=0)
    assert [*plain] == [[0, 1, 2]]


def test_a_loader_that_asks_ahead_takes_nothing() -> None:
    sampler = ElasticSampler(10, 5, num_replicas=1, rank=0)
    loader = list(sampler.ahead())
    assert len(sampler.ahead()) == 2
    assert sampler.num_taken == 0
    batches = sampler.counted(loader)
    next(batches)
    order = {"length": 10, "batch_size": 5, "shuffle": True, "drop_last": False}
    assert sampler.state_dict() == {"epoch": 0, "num_taken": 1, "seed": 0, **order}
    assert len(sampler.ahead()) == 1


def test_other_batches_do_not_go_on_within_an_epoch() -> None:
    sampler = ElasticSampler(60, 12, num_replicas=1, rank=0)
    next(iter(sampler))
    for changed in ({"batch_size": 6}, {"dataset": 61}, {"shuffle": False}, {"drop_last": True}):
        made = {"dataset": 60, "batch_size": 12, "num_replicas": 1, "rank": 0, **changed}
        with pytest.raises(ConfigError, match="within an epoch with other batches"):
            ElasticSampler(**made).load_state_dict(sampler.state_dict())
        other = ElasticSampler(**made)
        other.load_state_dict({"epoch": 4, "num_taken": 0, "seed": 1})  # of an earlier version
        assert other.epoch == 4


def test_nonsense_is_refused() -> None:
    for arguments in ({"rank": 2}, {"batch_size": 0}, {"dataset": 0}):
        given = {"dataset": 5, "batch_size": 2, "num_replicas": 2, "rank": 0, **arguments}
        with pytest.raises(ConfigError):
            ElasticSampler(**given)
