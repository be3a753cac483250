"""Whole states of models and optimizers that ranks have parts of: as one process and torch have
them, on any number of ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised
from support.launcher import Launcher
from support.worlds import run_in_one_world

pytest.importorskip("torch")
from support import state_dicts

pytestmark = pytest.mark.torch

Results = dict[str, list[Any]]
WORLDS = (1, 2, 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, Results]]:
    folder = tmp_path_factory.mktemp("states")
    found = {}
    for ranks in WORLDS:
        bodies: dict[str, Any] = {"saved": partial(state_dicts.saved, folder)}
        if ranks == 2:
            bodies["partly"] = partial(state_dicts.partly, folder)
            names = ("parts", "extra", "partial_optimizers", "wrapped", "on_others")
            bodies |= {name: getattr(state_dicts, name) for name in names}
            bodies["refused"] = state_dicts.refused  # which leaves no group
        found[ranks] = run_in_one_world(ranks, bodies, 60.0)
    return folder, found


def good(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error
    return results


@pytest.mark.parametrize("ranks", WORLDS)
def test_states_are_those_of_one_process(
    ranks: int, saved: tuple[Path, dict[int, Results]]
) -> None:
    found = good(saved[1][ranks]["saved"])[0]
    assert found
    assert found == dict.fromkeys(found, "")


@pytest.mark.parametrize("ranks", WORLDS)
def test_any_number_of_ranks_take_them(ranks: int, saved: tuple[Path, dict[int, Results]]) -> None:
    body = partial(state_dicts.loaded, saved[0])
    for found in good(run_in_one_world(ranks, {"loaded": body}, 60.0)["loaded"]):
        assert len(found) > 10
        assert found == dict.fromkeys(found, "")


def test_parts_are_set_without_being_gathered(saved: tuple[Path, dict[int, Results]]) -> None:
    for found in good(saved[1][2]["parts"]):
        assert found == dict.fromkeys(("fsdp", "tp", "ddp"), "")


def test_what_is_missing_is_returned_or_an_error(saved: tuple[Path, dict[int, Results]]) -> None:
    for found in good(saved[1][2]["extra"]):
        assert found["frozen"] == ["last.bias"] or sorted(found["frozen"]) == ["head", "last.bias"]
        assert found["misfits"] == (["last.weight"], ["head"])
        assert found["strict"].startswith("CheckpointError: tr.set_model_state_dict(): the state")
        assert "it lacks 'last.weight'; the model has no 'head'" in found["strict"]


def test_optimizers_take_state_by_numbers_and_in_part(
    saved: tuple[Path, dict[int, Results]],
) -> None:
    for found in good(saved[1][2]["partial_optimizers"]):
        assert found["numbers"] == ""
        assert found["groups"] == [2, 5]
        assert "kept without the parameter 'last.weight'" in found["strict"]
        assert found["left"] == []


def test_layers_that_are_computed_again_have_their_own_names(
    saved: tuple[Path, dict[int, Results]],
) -> None:
    for found in good(saved[1][2]["wrapped"]):
        assert found == {"layers": "", "all": ""}


def test_rank_0_gets_tensors_of_which_it_has_nothing(
    saved: tuple[Path, dict[int, Results]],
) -> None:
    for found in good(saved[1][2]["on_others"]):
        assert found["kinds"] == ["Tensor"]
        assert found["names"] == ["1.bias", "1.weight"]
        assert found["empty"] == (0, 4)


def test_checkpoints_are_loaded_in_part(saved: tuple[Path, dict[int, Results]]) -> None:
    for found in good(saved[1][2]["partly"]):
        assert found["values"] == ""
        assert sorted(found["missing"]) == ["model/head.bias", "model/head.weight"]
        assert sorted(found["unexpected"]) == ["model/last.bias", "model/last.weight"]
        assert "no tensor 'model/head.weight'" in found["strict"]
        assert found["stages"] == ()


def test_what_does_not_fit_is_refused_on_all_ranks(saved: tuple[Path, dict[int, Results]]) -> None:
    first, other = good(saved[1][2]["refused"])
    for found in (first, other):
        assert "is float32 of shape (2,) there, and float64 of shape () here" in found["shape"]
        assert "rank 1" in found["one rank"]
        assert "flatten_optimizer_state_dict=True is not supported" in found["flat"]
        assert "options must be a StateDictOptions, not dict" in found["dict"]
        assert "broadcast_from_rank0=True requires full_state_dict=True" in found["from first"]
        assert "a parameter of shape (2, 2) that is of no model" in found["stranger"]
        assert "first.weight' is float64 of shape (17, 17) there" in found["other part"]
        assert "which torch.distributed.checkpoint does not know: save with" in found["by torch"]
        for name in ("parts for all", "parts of moments"):
            assert "with broadcast_from_rank0 the other ranks need all of it" in found[name]
        assert "outside of summon_full_params(), and after reshard()" in found["held"]
        assert "'int' is no class of models" in found["no model"]
        assert "it must have 'state' and 'param_groups'" in found["form"]
    assert "call it on every rank, outside of `if rank == 0:`" in first["alone"]


OF_TORCH = """
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions

import torsh_runtime as tr

dist.init_process_group("torsh")
layers = [torch.nn.Linear(10, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
model = tr.FullyShardedDataParallel(torch.nn.Sequential(*layers), min_num_params=0)
optimizer = torch.optim.Adam(model.parameters())
model(torch.randn(8, 10)).sum().backward()
optimizer.step()
out = StateDictOptions(full_state_dict=True, cpu_offload=True)
state = tr.get_model_state_dict(model=model, options=out)
moments = tr.get_optimizer_state_dict(model=model, optimizers=optimizer, options=out)
back = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
told = tr.set_model_state_dict(model=model, model_state_dict=state, options=back)
tr.set_optimizer_state_dict(
    model=model, optimizers=optimizer, optim_state_dict=moments, options=back
)
print(f"rank {dist.get_rank()}: {len(state)} and {len(moments)}, {told}")
dist.destroy_process_group()
"""


def test_scripts_of_torch_change_an_import(torshrun: Launcher) -> None:
    torshrun.share_torch()
    (torshrun.folder / "train.py").write_text(OF_TORCH)
    code, out, err = torshrun.run("--nproc-per-node", "2", "train.py", within=60)
    assert code == 0, err
    assert "rank 0: 4 and 2, <All keys matched successfully>" in out
    assert "rank 1: 0 and 0, <All keys matched successfully>" in out
