"""Tensor parallelism: whatever ranks have of a model, its numbers are those of one process."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import tensor_parallel
from support.forked import Raised
from support.worlds import run_in_one_world

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])
TRAININGS: dict[str, dict[str, Any]] = {
    "spread": {"plan": tensor_parallel.SPREAD},
    "untied": {"plan": tensor_parallel.SPREAD, "ties": False},
    "checkpointed": {"plan": tensor_parallel.SPREAD, "checkpoints": True},
    "sequence": {"plan": tensor_parallel.SEQUENCE},
    "sequence checkpointed": {"plan": tensor_parallel.SEQUENCE, "checkpoints": True},
}


@cache
def found(framework: str, ranks: int) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {
        name: partial(_trained, framework, options) for name, options in TRAININGS.items()
    }
    return run_in_one_world(ranks, bodies, 60.0)


def _trained(framework: str, options: dict[str, Any], rank: int) -> Any:
    return tensor_parallel.beside_one_process(framework, rank=rank, **options)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return results


def check(results: list[Any]) -> None:
    for result in whole(results):
        far = {name: size for name, size in result["apart"].items() if not size < 1e-9}
        assert not far
        assert result["bits"] == results[0]["bits"]


@with_both
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", TRAININGS)
def test_trains_as_one_process_does(name: str, ranks: int, framework: str) -> None:
    check(found(framework, ranks)[name])
