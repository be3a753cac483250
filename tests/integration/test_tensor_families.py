"""Plans for models of transformers, and for layers of any class, beside one process."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world

if not all(map(find_spec, ("torch", "transformers"))):
    pytest.skip("needs transformers", allow_module_level=True)
from support import mixed_features
from support import tensor_families as families

pytestmark = pytest.mark.torch
ON_THREE = ("llama few keys", "llama odd keys", "qwen3 sequence", "qwen2 moe", "phi3", "mamba")


@cache
def found(ranks: int) -> dict[Any, list[Any]]:
    names = families.FAMILIES if ranks == 2 else ON_THREE
    bodies: dict[Any, Any] = {name: partial(families.beside_one_process, name) for name in names}
    if ranks == 2:
        bodies |= {each: partial(families.without, *each) for each in families.OMITTED}
        bodies |= {"wrong": families.wrong, "dropped": families.dropped}
        bodies["verified"] = families.verified
        bodies |= {"mixed": mixed_features.mixed, "apart": mixed_features.apart}
        bodies["kinds"] = mixed_features.kinds
        bodies["from outside"] = mixed_features.from_outside
    bodies["strangers"] = families.strangers
    return run_in_one_world(ranks, bodies, 60.0)


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace  # type: ignore[attr-defined]
    return results


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_trains_as_one_process_does(name: str) -> None:
    for apart in whole(found(2)[name]):
        assert not {key: size for key, size in apart.items() if not size < 1e-9}


@pytest.mark.parametrize("name", ON_THREE)
def test_so_it_does_where_heads_do_not_divide_evenly(name: str) -> None:
    for apart in whole(found(3)[name]):
        assert not {key: size for key, size in apart.items() if not size < 1e-9}


@pytest.mark.parametrize("ranks", [2, 3])
def test_layers_of_any_class_have_parts(ranks: int) -> None:
    for apart in whole(found(ranks)["strangers"]):
        assert len(apart) > 5
        assert not {key: size for key, size in apart.items() if not size < 1e-9}


def test_what_is_not_in_a_plan_is_refused_at_the_first_step() -> None:
    for omitted in families.OMITTED:
        for said in whole(found(2)[omitted]):
            assert said.startswith("ConfigError"), (omitted, said)


def test_what_cannot_be_right_is_said_by_name() -> None:
    for said in whole(found(2)["wrong"]):
        assert "'model.norm' is a LlamaRMSNorm, and Column() is for Linear" in said[0]
        assert "say Part(dim) or Shared()" in said[0]
        assert "the forward() of a Silent does not call that of the Linear" in said[1]
        assert "'model.layers.0.mlp' is a LlamaMLP, and Row() is for Linear" in said[2]
        assert "'model.layers.0.self_attn' cannot be cut: it has no attribute 'heads'" in said[3]
        assert "its num_key_value_groups is 2, and 1 heads of queries look at each" in said[4]
        assert "Summed() of '' and Row() of '0' below it, which would be summed twice" in said[5]
        assert "'0.weight' in the plan matches a parameter, and Column() is for modules" in said[6]
        assert "'0.bais' in the plan matches no parameter; there are: 0.bias" in said[7]
        assert "it has no dimension 2, of shape (4, 4)" in said[8]
        assert "the plan says Column() of '0', and something else of its bias" in said[9]
        assert "2 heads of keys and values do not divide 3 of queries" in said[10]
        assert "forward() of a Sized does not compute with this rank's heads: shape" in said[11]
        assert "say Column(gather_output=True) and Row(input_is_parallel=False)" in said[11]
        assert "a convolution by groups: say Cut(0, unit=2) of its weight" in said[12]


def test_own_heads_are_dropped_by_a_stream_of_each_ranks_own() -> None:
    (one, other) = whole(found(2)["dropped"])
    assert one == other
    assert one[:3] == one[3:]


def test_verification_knows_of_parts_of_sums() -> None:
    for said in whole(found(2)["verified"]):
        assert all("values are those of one process" in each for each in said)


def test_features_that_are_mixed_are_refused_in_the_first_forward_pass() -> None:
    for said in whole(found(2)["mixed"]):
        assert {*said} == {*mixed_features.MIXING, "llama"}
        for name, each in said.items():
            assert "features are mixed between" in each, (name, each)
    for far in whole(found(2)["apart"]):
        assert far.pop("hooks") == 0
        assert not {name: size for name, size in far.items() if not size < 1e-12}


def test_a_second_module_that_computes_otherwise_is_watched_too() -> None:
    for said in whole(found(2)["kinds"]):
        assert {*said} == {*mixed_features.PAIRS, "training"}
        for name, each in said.items():
            assert "features are mixed between" in each, (name, each)


def test_a_module_within_a_sum_may_be_called_from_outside() -> None:
    for far in whole(found(2)["from outside"]):
        assert "'inner.up' was called by something else than 'inner'" in far.pop("part")
        assert not {name: size for name, size in far.items() if not size < 1e-9}
