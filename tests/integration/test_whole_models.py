"""Models that are cut, written and read: whole tensors, one process's files, or refused by name."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.worlds import run_in_one_world, run_processes

if not all(map(find_spec, ("torch", "transformers"))):
    pytest.skip("needs transformers", allow_module_level=True)
from support import whole_models

pytestmark = pytest.mark.torch


Results = dict[str, list[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def on_two(folder: Path) -> Results:
    bodies: dict[str, Any] = {}
    for name in ("as_theirs", "refused", "read", "keep"):
        (folder / name).mkdir()
        bodies[name] = partial(getattr(whole_models, name), folder / name)
    names = ("out_and_in", "states", "copies", "alone")  # the last one leaves no group
    bodies |= {name: getattr(whole_models, name) for name in names}
    return run_in_one_world(2, bodies, 120.0)


def good(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error
    return results


def test_what_is_saved_is_read_bit_for_bit(on_two: Results) -> None:
    for result in good(on_two["out_and_in"]):
        assert result == dict.fromkeys(whole_models.OUT_AND_IN, "")


def test_files_are_those_of_the_whole_model(on_two: Results) -> None:
    assert good(on_two["as_theirs"])[0] == ["", ""]


def test_state_dict_has_whole_tensors_on_rank_0(on_two: Results) -> None:
    first, other = good(on_two["states"])
    for found in (first, other):
        assert [found[each] for each in ("names", "tied", "kinds", "whole")] == [True] * 4
        assert found["layer"] == ["weight"]
        assert found["back"]
        assert found["parts back"]
        assert "leave assign out" in found["assigned"]
        assert "dict(model.named_parameters())" in found["variables"]
    assert "lm_head.weight" in first["of all"]
    assert other["of all"] == 0
    for what in ("saved", "computed", "loaded"):
        assert "this rank has no values of 'model.embed_tokens.weight'" in other[what]


def test_copies_are_models_with_parts_and_no_pickles(on_two: Results) -> None:
    for found in good(on_two["copies"]):
        assert found["copy"]
        assert found["mean"]
        assert "call tr.clip_grad_norm_(model, max_norm, mesh)" in found["clipped"]
        assert found["pickled"].startswith("ConfigError: a model of which ranks have parts cannot")


def test_what_cannot_be_written_or_read_is_refused_on_all_ranks(on_two: Results) -> None:
    for found in good(on_two["refused"]):
        assert "push_to_hub=False" in found["pushed"]
        assert found["no folder"].startswith("CheckpointError: save_pretrained(): rank 0:")
        assert "such as '5GB', not 'much'" in found["size"]
        assert "a Sequential is no model of transformers" in found["stranger"]
        assert "no weights in safetensors' format" in found["no files"]
        assert "takes no device_map" in found["map"]
        assert "'0.weight' is on the meta device" in found["no values"]
        assert found["no model"] == "[]"


def test_each_rank_reads_its_own_bytes(on_two: Results) -> None:
    for found in good(on_two["read"]):
        assert found["bytes"] == found["own"]
        assert found["buffers"]
        assert found["like"]
        assert found["generates"]
        assert found["dtype"] == "torch.bfloat16"
        assert "call tr.clip_grad_norm_(model, max_norm, mesh)" in found["clipped"]


def test_models_in_wrappers_and_stages_are_written_whole(tmp_path: Path) -> None:
    results = run_processes(4, partial(whole_models.wrapped, tmp_path), 120.0)
    for found in good(results):
        assert "for a module around this one: pass that" in found.pop("inner")
        assert found.pop("state")
        assert found == dict.fromkeys(found, "")


def test_a_call_on_one_rank_alone_says_so(on_two: Results) -> None:
    first, other = good(on_two["alone"])
    assert first.startswith("ConfigError: state_dict() of a model of which ranks have parts")
    assert "call it on every rank, outside of `if rank == 0:`" in first
    assert "CommMismatch" in other


def test_checkpoints_are_read_by_more_ranks(on_two: Results, folder: Path) -> None:
    good(on_two["keep"])
    for found in good(run_processes(3, partial(whole_models.take, folder / "keep"), 60.0)):
        assert found == dict.fromkeys(whole_models.KEPT, True)
