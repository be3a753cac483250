"""The torch.distributed backend "torsh": every operation, in all of torch's spellings."""

from __future__ import annotations

import importlib.util

import pytest
from support.torch_ranks import passed, run_ranks

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

OPERATIONS = (
    "reduces",
    "reductions",
    "moves",
    "exchanges",
    "uneven_lists",
    "strided",
    "coalesced",
    "older_spellings",
    "functional",
    "subclasses",
    "stand_for_others",
    "messages",
    "objects",
    "asynchronous",
    "in_backward_passes",
    "sparse",
    "subgroups",
    "splits",
    "observed",
    "facts",
)


def check(name: str, ranks: int) -> None:
    from support import torch_operations

    body = getattr(torch_operations, name)
    passed(run_ranks(ranks, lambda rank: body(rank, ranks)))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name: str, ranks: int) -> None:
    check(name, ranks)


@pytest.mark.parametrize("name", ["reduces", "reductions", "exchanges", "coalesced", "facts"])
def test_operation_of_one_rank(name: str) -> None:
    check(name, 1)
