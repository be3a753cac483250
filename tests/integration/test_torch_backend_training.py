"""Training on the backend "torsh" gives what it gives on gloo."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from support.torch_ranks import passed, run_ranks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

TRAININGS = (
    "ddp",
    "ddp_views",
    "ddp_hook",
    "ddp_builtin_hook",
    "ddp_compiled",
    "compiled_collectives",
    "ddp_unused",
    "ddp_sparse",
    "ddp_uneven",
    "fsdp",
    "tensor_parallel",
    "dtensor",
    "zero",
    "pipeline",
)


def train(name: str, ranks: int, backend: str = "torsh") -> list[Any]:
    import torch
    from support import torch_training

    def body(rank: int) -> Any:
        torch.manual_seed(0)
        torch.set_num_threads(1)  # ranks are more than processors
        return getattr(torch_training, name)(rank)

    return passed(run_ranks(ranks, body, backend))


@pytest.mark.parametrize("name", TRAININGS)
def test_two_ranks_get_the_same_bits_as_on_gloo(name: str) -> None:
    import torch

    for mine, theirs in zip(train(name, 2), train(name, 2, "gloo"), strict=True):
        assert mine.keys() == theirs.keys()
        for key, value in mine.items():  # the sum of two numbers has one order only
            assert torch.equal(value, theirs[key]), key


@pytest.mark.parametrize("name", ["ddp", "ddp_views", "ddp_hook", "ddp_builtin_hook"])
def test_operations_that_overlap_with_the_backward_pass_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train(name, 2)
    for variable, value in {"RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(variable, value)  # as on two nodes
    for mine, other in zip(train(name, 2), alone, strict=True):
        for key, tensor in mine.items():
            assert tensor.equal(other[key]), key


@pytest.mark.parametrize("name", ["ddp", "hybrid", "tensor_parallel"])
def test_four_ranks_train_as_on_gloo(name: str) -> None:
    import torch

    for mine, theirs in zip(train(name, 4), train(name, 4, "gloo"), strict=True):
        for key, value in mine.items():
            torch.testing.assert_close(value, theirs[key])


def test_all_ranks_have_the_same_bits() -> None:
    first, *others = train("ddp", 4)
    for state in others:
        for key, value in state.items():
            if "running" not in key:  # each rank's own statistics, until the next forward pass
                assert value.equal(first[key]), key
