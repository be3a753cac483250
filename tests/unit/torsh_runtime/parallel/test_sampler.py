"""Which samples are whose."""

from __future__ import annotations

import pytest

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.sampler import DistributedSampler


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("length", "ranks"), [(10, 1), (10, 2), (10, 3), (2, 5), (0, 2)])
def test_every_sample_is_somebodys_and_ranks_have_equally_many(
    length: int, ranks: int, shuffle: bool
) -> None:
    samplers = [DistributedSampler(range(length), ranks, r, shuffle) for r in range(ranks)]
    shares = [list(each) for each in samplers]
    assert {index for share in shares for index in share} == set(range(length))
    assert [len(share) for share in shares] == [len(each) for each in samplers]
    assert len({len(share) for share in shares}) == 1


def test_what_is_left_over_can_be_left_out() -> None:
    shares = [list(DistributedSampler(10, 3, r, drop_last=True)) for r in range(3)]
    assert [len(share) for share in shares] == [3, 3, 3]
    assert len({index for share in shares for index in share}) == 9


def test_epochs_differ_and_seeds_do() -> None:
    sampler = DistributedSampler(100, 2, 0, seed=1)
    first, again = list(sampler), list(sampler)
    assert first == again
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(DistributedSampler(100, 2, 0, seed=2)) != first


def test_it_goes_on_where_it_stood() -> None:
    sampler = DistributedSampler(20, 2, 1)
    sampler.set_epoch(3)
    whole = list(sampler)
    other = DistributedSampler(20, 2, 1)
    other.load_state_dict(sampler.state_dict(taken=4))
    assert list(other) == whole[4:]
    assert list(other) == whole
    other.load_state_dict(sampler.state_dict(taken=4))
    other.set_epoch(3)  # as at the head of every training loop
    assert list(other) == whole[4:]
    other.set_epoch(4)
    assert len(list(other)) == 10


def test_what_has_been_given_out_counts_as_taken() -> None:
    sampler, whole = DistributedSampler(20, 2, 1), list(DistributedSampler(20, 2, 1))
    samples = iter(sampler)
    assert [next(samples) for _ in range(4)] == whole[:4]
    other = DistributedSampler(20, 2, 1)
    other.load_state_dict(sampler.state_dict())
    again = DistributedSampler(20, 2, 1)
    again.load_state_dict(other.state_dict())  # before anything was taken there
    assert list(other) == list(again) == whole[4:] == list(samples)
    assert next(iter(sampler)) == whole[0]
    other.load_state_dict(sampler.state_dict())
    assert list(other) == whole[1:]


def test_an_epoch_that_is_over_is_not_repeated() -> None:
    sampler, other = DistributedSampler(20, 2, 1), DistributedSampler(20, 2, 1)
    sampler.set_epoch(3)
    whole = list(sampler)
    state = sampler.state_dict()
    other.load_state_dict(state)
    other.set_epoch(3)  # of a loop that begins with the epoch of the sampler
    assert list(other) == []
    other.load_state_dict(state)
    assert list(other) == whole  # as the one that went on does
    later = DistributedSampler(20, 2, 1)
    later.set_epoch(4)  # before the state is loaded, as a loader loads it late
    later.load_state_dict(state)
    assert later.epoch == 4
    assert list(later) == [*later]
    more = DistributedSampler(20, 4, 1)
    more.load_state_dict(state)
    more.set_epoch(4)
    assert len(list(more)) == 5


def test_other_datasets_and_orders_do_not_go_on_within_an_epoch() -> None:
    state = DistributedSampler(20, 2, 1).state_dict(taken=4)
    for changed in ({"dataset": 21}, {"shuffle": False}, {"drop_last": True}):
        made = {"dataset": 20, "num_replicas": 2, "rank": 1, **changed}
        with pytest.raises(ConfigError, match="another dataset or order"):
            DistributedSampler(**made).load_state_dict(state)
    seeded = DistributedSampler(20, 2, 1, seed=7)
    seeded.load_state_dict(state)
    assert list(seeded) == list(DistributedSampler(20, 2, 1))[4:]


@pytest.mark.torch
def test_a_loader_with_workers_asks_ahead() -> None:
    loaders = pytest.importorskip("torch.utils.data")
    sampler = DistributedSampler(20, 2, 1)
    whole = list(sampler)
    batches = iter(loaders.DataLoader(range(20), 2, sampler=sampler))
    assert next(batches).tolist() == whole[:2]
    assert sampler.state_dict()["taken"] == 2
    batches = iter(loaders.DataLoader(range(20), 2, sampler=sampler, num_workers=1))
    next(batches)
    with pytest.raises(ConfigError, match=r"asks ahead.*StatefulDataLoader.*taken=\.\.\."):
        sampler.state_dict()
    assert sampler.state_dict(taken=2)["taken"] == 2
    assert len(list(batches)) == 4
    assert sampler.state_dict()["is_over"]


def test_a_rank_that_is_none() -> None:
    with pytest.raises(ConfigError, match="rank 2 is none of 2"):
        DistributedSampler(10, 2, 2)


def test_other_ranks_do_not_go_on_within_an_epoch() -> None:
    sampler, other = DistributedSampler(20, 2, 1), DistributedSampler(20, 4, 1)
    with pytest.raises(ConfigError, match=r"within an epoch of 2 ranks, and there are 4: begin"):
        other.load_state_dict(sampler.state_dict(taken=4))
    sampler.set_epoch(3)
    other.load_state_dict(sampler.state_dict())
    assert (other.epoch, len(list(other))) == (3, 5)
