"""FullyShardedDataParallel on torch models: what comes out is what one process computes."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

WAYS = ("common", "gathered", "device", "offloaded")


OF_THREE = ("full", "grad-and-optimizer", "none", "one unit", "accumulating", "clipped", "nested")


OFFLOADED = (*OF_THREE, "no_sync", "zeroed late", "reentrant checkpoint", "held")


def ways(name: str) -> Sequence[str]:
    """Of storing flat parameters, in which a course is taken."""
    if name.startswith("compiled"):
        return WAYS[:2]
    return WAYS if name in OFFLOADED else WAYS[:3]


def names(ranks: int) -> Sequence[str]:
    """Of courses; where ranks are three, those in which their number matters."""
    if not importlib.util.find_spec("torch"):
        return []
    from support.fsdp_training import COURSES

    return [*COURSES] if ranks == 2 else OF_THREE


@cache
def trained(ranks: int) -> dict[Any, list[Any]]:
    from support import fsdp_training

    def alone(name: str, rank: int) -> Any:
        return fsdp_training.alone(name, ranks) if rank == 0 else None

    bodies: dict[Any, Any] = {"ddp": partial(fsdp_training.data_parallel, ranks=ranks)}
    for name in names(ranks):
        for way in ways(name):
            bodies[name, way] = partial(fsdp_training.together, name, ranks=ranks, way=way)
        bodies[name, "alone"] = partial(alone, name)
    if ranks == 4:
        bodies = {"ddp": bodies["ddp"]}
        for way in WAYS:
            bodies["hybrid", way] = partial(fsdp_training.hybrid, way=way)
        bodies["clipped by torch"] = fsdp_training.hybrid_clipped
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    """The results, of which none is an error."""
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


def check(results: list[Any], expected: dict[str, Any], loose: float = 1) -> None:
    import torch

    first, *others = whole(results)
    mean = torch.stack([each.pop("losses") for each in results]).mean(0)
    for key, value in expected.items():
        if key == "losses":
            torch.testing.assert_close(mean[:-1], value[:-1], rtol=loose * 1e-4, atol=loose * 1e-5)
            continue
        torch.testing.assert_close(first[key], value, rtol=loose * 1e-3, atol=loose * 1e-4, msg=key)
        assert all(torch.equal(first[key], other[key]) for other in others)


def check_same(results: list[Any], others: list[Any]) -> None:
    """Each rank had the same losses, and has the same parameters, within float32's rounding."""
    import torch

    for result, other in zip(results, others, strict=True):
        for key, value in other.items():
            torch.testing.assert_close(result[key], value, rtol=1e-4, atol=2e-5, msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way", "ranks"),
    [(name, way, ranks) for ranks in (2, 3) for name in names(ranks) for way in ways(name)],
)
def test_trains_as_one_process_does(name: str, way: str, ranks: int) -> None:
    expected = whole(trained(ranks)[name, "alone"])[0]
    loose = 100 if name == "autocast" else 1  # gradients of whole batches are rounded to bfloat16
    check([dict(each) for each in whole(trained(ranks)[name, way])], expected, loose)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["full", "grad-and-optimizer", "none"])
def test_losses_are_those_of_data_parallelism(name: str, way: str, ranks: int) -> None:
    check_same(whole(trained(ranks)[name, way]), whole(trained(ranks)["ddp"]))


@pytest.mark.parametrize("way", WAYS)
def test_replicas_of_shards_train_as_data_parallelism_does(way: str) -> None:
    check_same(whole(trained(4)["hybrid", way]), whole(trained(4)["ddp"]))


def test_outputs_in_objects_that_nobody_looks_into_are_trained_or_refused() -> None:
    import torch
    from support import fsdp_training

    bodies = {"hidden": fsdp_training.with_hidden_outputs}
    for (seen, hidden), told in whole(run_in_one_world(2, bodies, 60.0)["hidden"]):
        torch.testing.assert_close(hidden, seen)
        assert "returned a SimpleNamespace, in which" in told
        assert "lists, tuples, dicts or dataclasses" in told


def test_torchs_clipping_is_refused_where_not_all_ranks_have_parts() -> None:
    for text in whole(trained(4)["clipped by torch"]):
        assert "call model.clip_grad_norm_(max_norm)" in text
