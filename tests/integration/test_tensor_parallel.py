"""Tensor parallelism: whatever ranks have of a model, its numbers are those of one process."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support import tensor_layers, tensor_modes, tensor_parallel
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
    bodies |= {
        f"attention {kv} {dropout}": partial(tensor_layers.self_attention, framework, kv, dropout)
        for kv, dropout in ATTENTIONS
        if framework == "nn" or not dropout
    }
    bodies["by hand"] = partial(tensor_layers.by_hand, framework)
    bodies["losses"] = partial(tensor_layers.losses, framework)
    bodies["changed leaf"] = partial(tensor_layers.changed_leaf, framework)
    if ranks == 2:
        bodies["fused"] = partial(tensor_layers.fused, framework)
        bodies["refused"] = partial(tensor_layers.refused, framework, ranks=ranks)
    return run_in_one_world(ranks, bodies | OF[framework](), 60.0)


def of_nn() -> dict[str, Any]:
    blocks = {
        f"block {dropout} {sequence}": partial(tensor_layers.block_of_nn, dropout, sequence)
        for dropout in (0.0, 0.3)
        for sequence in (False, True)
    }
    return {
        **blocks,
        "layer": tensor_layers.attention_of_nn,
    }


def of_torch() -> dict[str, Any]:
    return {
        **{
            f"layer {name}": partial(tensor_layers.attention_of_torch, name)
            for name in tensor_layers.ATTENTIONS
        },
        "layer unbatched": tensor_layers.unbatched,
        "encoder": partial(tensor_layers.encoder_of_torch, False),
        "encoder norm_first": partial(tensor_layers.encoder_of_torch, True),
        "decoder": tensor_layers.decoder_of_torch,
        "autocast": tensor_layers.autocast_of_torch,
        "autocast loss": tensor_layers.autocast_loss,
        "differentiated twice": tensor_layers.differentiated_twice,
        "forgotten": tensor_layers.forgotten,
        "without memory": tensor_layers.without_memory,
        "dropout": tensor_layers.dropout_of_torch,
    }


OF = {"nn": of_nn, "torch": of_torch}
ATTENTIONS = [(6, 0.0), (6, 0.4), (3, 0.0), (2, 0.0), (1, 0.0), (1, 0.4)]


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


@cache
def found_on_four(framework: str) -> dict[Any, list[Any]]:
    bodies: dict[Any, Any] = {"mesh": partial(tensor_parallel.on_mesh, framework)}
    bodies |= {
        f"attention {kv}": partial(tensor_layers.self_attention, framework, kv, 0.0)
        for kv in (6, 3, 2, 1)
    }
    return run_in_one_world(4, bodies, 60.0)


@with_both
def test_replicas_of_parts_train_as_one_process_does(framework: str) -> None:
    check(found_on_four(framework)["mesh"])


@with_both
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
def test_more_ranks_than_heads_of_keys_and_values(kv_heads: int, framework: str) -> None:
    for apart in whole(found_on_four(framework)[f"attention {kv_heads}"]):
        assert max(apart.values()) < 1e-9


@with_both
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", TRAININGS)
def test_trains_as_one_process_does(name: str, ranks: int, framework: str) -> None:
    check(found(framework, ranks)[name])


@with_both
@pytest.mark.parametrize("ranks", [2, 3])
def test_layers_are_what_whole_ones_are(ranks: int, framework: str) -> None:
    names = [
        name
        for name in found(framework, ranks)
        if name not in TRAININGS and name not in ("dropout", "refused")
    ]
    assert len(names) > 8
    for name in names:
        for apart in whole(found(framework, ranks)[name]):
            far = {key: size for key, size in apart.items() if not size < 1e-9}
            assert not far, name


@pytest.mark.torch
@pytest.mark.skipif(not has_torch, reason="needs torch")
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_drop_the_same_of_what_all_have_and_their_own_of_parts(ranks: int) -> None:
    results = whole(found("torch", ranks)["dropout"])
    assert all(each["again"] for each in results)
    assert len({each["result"] for each in results}) == 1
    assert len({each["state"] for each in results}) == 1
    assert len({each["mask"] for each in results}) == ranks


@with_both
def test_what_is_wrong_is_said_on_all_ranks(framework: str) -> None:
    for said in whole(found(framework, 2)["refused"]):
        assert len(said) == 28, said
        assert "'upp' in the plan matches no module; there are: up" in said[0]
        assert "both match 'up'" in said[1]
        assert "'norm' is a LayerNorm, and Column() is for Linear" in said[2]
        assert "table.weight is not cut" in said[3]
        assert "1 heads are too few for 2 ranks" in said[4]
        assert "on rank(s) 0" in said[5]
        assert "'none' in the plan matches no module" in said[6]
        assert "forward() of its own" in said[7]
        assert "of shape (4, 3)" in said[8]
        assert "parameter 'weight' with values of checksum " in said[9]
        assert "give Column(), Row()" in said[10]
        assert "1 features are too few for 2 ranks" in said[11]
        assert "9 features are no whole number of heads of 2" in said[12]
        assert "dimension -1 is normalised" in said[13]
        assert "1 heads are too few for 2 ranks" in said[14]
        assert "5 heads do not divide an embedding of 12" in said[15]
        assert "4 heads of keys and values" in said[16]
        assert "an input of shape (2, 3) came" in said[17]
        assert "'torch' or 'nn'" in said[18]
        assert "none called 'tp'" in said[19]
        assert "forward() of its own" in said[20]
        assert "a mask of shape (4, 5, 5) is not (…, 6 heads, L, S)" in said[21]
        assert "targets are from 0 to 7" in said[22]
        assert "have the same scores of 4 classes" in said[23]
        assert "the axis 'tp' have parts of one layer, and take the same batch" in said[24]
        assert "the axis 'tp' have parts of one layer, and take the same batch" in said[25]
        assert all("different parts of the model" in each for each in said[26:])


@pytest.mark.torch
@pytest.mark.skipif(not has_torch, reason="needs torch")
def test_parameters_may_be_of_a_subclass_of_tensors() -> None:
    results = run_in_one_world(2, {"subclassed": tensor_layers.subclassed}, 60.0)["subclassed"]
    for each in results:
        assert not isinstance(each, Raised), each.error.trace
        assert max(each.values()) < 1e-12, each


@pytest.mark.torch
@pytest.mark.skipif(not has_torch, reason="needs torch")
def test_selective_checkpoints_are_written_to_by_nobody() -> None:
    bodies = {
        (kept, dim): partial(tensor_modes.selectively_checkpointed, kept=kept, sequence_dim=dim)
        for kept in tensor_modes.KEPT
        for dim in (None, 1)
    }
    for what, results in run_in_one_world(2, bodies, 60.0).items():
        for each in results:
            assert not isinstance(each, Raised), each.error.trace
            assert max(each.values()) < 1e-9, (what, each)
