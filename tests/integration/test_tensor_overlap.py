"""Weights' gradients that are computed beside communications are those of one process."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
TRAININGS = ("spread", "checkpointed", "sequence", "sequence checkpointed")
LAYERS = ("fused", "by hand", "autocast", "differentiated twice", "without memory", "changed leaf")


@cache
def found() -> dict[Any, list[Any]]:
    from support import tensor_layers, tensor_overlap, tensor_parallel

    plans = {"spread": tensor_parallel.SPREAD, "sequence": tensor_parallel.SEQUENCE}
    bodies: dict[Any, Any] = {
        name: partial(
            tensor_parallel.beside_one_process,
            "torch",
            plans[name.split()[0] if name != "checkpointed" else "spread"],
            checkpoints="checkpointed" in name,
        )
        for name in TRAININGS
    }
    bodies |= {
        "fused": partial(tensor_layers.fused, "torch"),
        "by hand": partial(tensor_layers.by_hand, "torch"),
        "autocast": tensor_layers.autocast_of_torch,
        "differentiated twice": tensor_layers.differentiated_twice,
        "without memory": tensor_layers.without_memory,
        "changed leaf": partial(tensor_layers.changed_leaf, "torch"),
        "unneeded": tensor_overlap.unneeded,
    }
    bodies = {name: partial(tensor_overlap.there, body) for name, body in bodies.items()}
    bodies |= {"bits": tensor_overlap.same_bits, "order": tensor_overlap.order}
    return run_in_one_world(2, bodies, 60.0)


def whole(name: str) -> list[Any]:
    for result in found()[name]:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return found()[name]


@pytest.mark.parametrize("name", TRAININGS)
def test_trains_as_one_process_does(name: str) -> None:
    for result in whole(name):
        assert not {each: far for each, far in result["apart"].items() if not far < 1e-9}
        assert result["bits"] == whole(name)[0]["bits"]


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_what_whole_ones_are(name: str) -> None:
    for apart in whole(name):
        assert not {each: far for each, far in apart.items() if not far < 1e-9}


def test_bits_are_those_without() -> None:
    assert whole("bits") == [{"False": True, "True": True}] * 2


def test_a_weights_product_is_computed_while_the_sum_is_under_way() -> None:
    for said in whole("order"):
        *before, begin, sums, product, wait = said["False"][1:]
        assert (begin, sums, product, wait) == ("begin", "all_reduce", "product", "wait")
        assert before == ["product"] * 2  # of three layers with one input
        assert [each for each in said["True"] if each != "all_reduce"] == [
            "reduce_scatter_tensor",  # of the forward pass
            *["product"] * 2,
            *("begin", "reduce_scatter_tensor", "product", "wait"),
        ]


def test_gradients_are_those_that_are_wanted_each_time() -> None:
    assert whole("unneeded") == [[True, True, True]] * 2
