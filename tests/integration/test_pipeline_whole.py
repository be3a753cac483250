"""Pipelines of models as they are."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
from support.forked import Raised
from support.launcher import Launcher
from support.worlds import run_in_one_world, run_processes

pytest.importorskip("torch")

from support import whole_pipelines

pytest.importorskip("transformers")


@cache
def found() -> dict[str, list[Any]]:
    """All families, in one world. Ranks are forked: what they import is there."""
    for family in whole_pipelines.FAMILIES:
        whole_pipelines.model_of(family)
    bodies = {
        family: partial(whole_pipelines.trained, family=family)
        for family in whole_pipelines.FAMILIES
    }
    return run_in_one_world(2, bodies, 110.0)


@pytest.mark.parametrize("family", whole_pipelines.FAMILIES)
def test_a_model_of_transformers_trains_as_in_one_process(family: str) -> None:
    for result in found()[family]:
        assert not isinstance(result, Raised), result.error.args[0]
        for schedule, apart in result.items():
            assert apart < 1e-9, schedule


def whole(results: list[Any]) -> list[Any]:
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@pytest.mark.parametrize("what", ["used", "strange"])
def test_what_users_do_is_what_one_process_does(what: str) -> None:
    for pairs in whole(run_processes(2, getattr(whole_pipelines, what), 60.0)):
        for name, (got, wanted) in pairs.items():
            assert got == pytest.approx(wanted, rel=1e-6, abs=1e-9), name


def test_what_cannot_be_cut_so_is_refused_by_name() -> None:
    texts = (
        "AlbertForMaskedLM has no layers between which it could be cut",
        "set layerdrop to 0",
        "output_router_logits = False",
        "output_hidden_states",
        "its layers are model.layers.0, model.layers.1",
        "this rank has no batch",
        "contents",
        "'position_ids' of a batch has 3 rows",
    )
    for said in whole(run_processes(2, whole_pipelines.refused, 60.0)):
        for text, found_text in zip(texts, said, strict=True):
            assert text in found_text


def test_a_tied_weight_of_two_stages_of_a_replicated_rank_is_that_of_one_process() -> None:
    for apart in whole(run_processes(2, whole_pipelines.replicated, 60.0)):
        assert apart < 1e-9


def test_stages_parts_and_replicas_are_one_process() -> None:
    for apart in whole(run_processes(8, whole_pipelines.of_eight, 90.0)):
        assert max(apart.values()) < 1e-9, apart


_LEAN = """
import sys, torch
import torsh_runtime as tr

tr.init_process_group()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
loss_fn = torch.nn.functional.mse_loss
how = {"cuts": ["1"], "schedule": "gpipe", "placement": (0, 0), "loss_fn": loss_fn}
pipeline = tr.PipelineParallel(model, 2, **how)
pipeline.step(torch.ones(4, 4), torch.ones(4, 4))
print(sorted({"sympy", "transformers"} & {*sys.modules}))
"""


def test_a_step_loads_no_library_that_takes_more_memory_than_it(torshrun: Launcher) -> None:
    (torshrun.folder / "lean.py").write_text(_LEAN)
    code, out, err = torshrun.run("--nproc-per-node", "1", "lean.py")
    assert code == 0, err
    assert out.rstrip().endswith("[]"), out
