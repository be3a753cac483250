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
