"""FullyShardedDataParallel on torch models: what comes out is what one process computes."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support.worlds import Raised, run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

NAMES = (
    "full",
    "grad-and-optimizer",
    "none",
    "one unit",
    "by type",
    "by function",
    "replicated in part",
    "zeroed in place",
    "accumulating",
    "no_sync",
    "clipped",
    "checkpoint",
    "reentrant checkpoint",
    "prefetch post",
    "prefetch none",
    "no limit",
)
WAYS = ("common", "gathered")


@cache
def trained(ranks: int) -> dict[Any, list[Any]]:
    from support import fsdp_training

    def alone(name: str, rank: int) -> Any:
        return fsdp_training.alone(name, ranks) if rank == 0 else None

    bodies: dict[Any, Any] = {}
    for name in NAMES:
        for way in WAYS:
            bodies[name, way] = partial(
                fsdp_training.together, name, ranks=ranks, gathers=way == "gathered"
            )
        bodies[name, "alone"] = partial(alone, name)
    if ranks == 4:
        bodies = {"hybrid": fsdp_training.hybrid, ("full", "alone"): partial(alone, "full")}
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    """The results, of which none is an error."""
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


def check(results: list[Any], expected: dict[str, Any]) -> None:
    import torch

    first, *others = whole(results)
    mean = torch.stack([each.pop("losses") for each in results]).mean(0)
    for key, value in expected.items():
        if key == "losses":
            torch.testing.assert_close(mean[:-1], value[:-1], rtol=1e-4, atol=1e-5)
            continue
        torch.testing.assert_close(first[key], value, rtol=1e-3, atol=1e-4, msg=key)
        assert all(torch.equal(first[key], other[key]) for other in others)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_trains_as_one_process_does(name: str, way: str, ranks: int) -> None:
    expected = whole(trained(ranks)[name, "alone"])[0]
    check([dict(each) for each in whole(trained(ranks)[name, way])], expected)


def test_replicas_of_shards_train_as_one_process_does() -> None:
    found = trained(4)
    check(whole(found["hybrid"]), whole(found["full", "alone"])[0])
