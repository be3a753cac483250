"""NCCL on real GPUs: the suite of backends, and a rank that ends. One GPU is enough for all."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from support.nccl_cases import cases_for_nccl
from support.real_gpus import needs_gpu, passed, run_on_gpus

pytestmark = [pytest.mark.gpu, needs_gpu]


@cache
def suite(ranks: int) -> list[Any]:
    return run_on_gpus(ranks, "suite", cases_for_nccl(ranks))


@pytest.mark.parametrize("name", cases_for_nccl(2))
def test_the_suite_with_two_ranks(name: str) -> None:
    for found in passed(suite(2)):
        assert not found[name]


@pytest.mark.parametrize("name", cases_for_nccl(3))
def test_the_suite_with_three_ranks(name: str) -> None:
    for found in passed(suite(3)):
        assert not found[name]


def test_a_rank_that_ends_is_named_by_those_that_wait_for_it_on_the_gpu() -> None:
    said, gone, also_said = run_on_gpus(3, "lose_a_rank")
    assert "rank 1" in said
    assert "rank 1" in also_said
    assert "wrote no result" in str(gone.error)


def test_survivors_of_a_lost_rank_make_a_fresh_communicator() -> None:
    said, _, also_said = run_on_gpus(3, "go_on")
    assert passed([said, also_said]) == [2, 2]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_8_bits(dtype: str) -> None:
    for moved, reduced in passed(run_on_gpus(2, "reduce_float8", dtype)):
        assert moved == [1.0] * 4 + [2.0] * 4
        assert reduced in ([], [3.0] * 4)


def test_a_block_does_not_defer_another_groups_operations() -> None:
    assert passed(run_on_gpus(2, "launch_in_blocks")) == [([4.0] * 4, [4.0] * 4)] * 2
