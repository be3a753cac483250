"""Models with layouts on meshes: norms, initial values and checkpoints are those of one process."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import mesh_models
from support.forked import Raised
from support.worlds import run_in_one_world

FRAMEWORKS = ["nn", pytest.param("torch", marks=pytest.mark.torch)]
SOURCE = {"pp": 2, "dp": 2, "tp": 2}
TARGETS: list[tuple[dict[str, int], bool]] = [
    ({"pp": 1, "dp": 1, "tp": 4}, False),
    ({"pp": 4, "dp": 1, "tp": 1}, False),
    ({"pp": 1, "dp": 3, "tp": 1}, False),
    ({"pp": 1, "dp": 2, "tp": 2}, True),
    ({"pp": 1, "dp": 1, "tp": 1}, False),
]


def on_ranks(sizes: dict[str, int], bodies: dict[Any, Any]) -> dict[Any, list[Any]]:
    results = run_in_one_world(
        math.prod(sizes.values()),
        {key: lambda rank, body=body: body() for key, body in bodies.items()},
        60.0,
    )
    for each in results.values():
        for rank, result in enumerate(each):
            told = isinstance(result, Raised)
            assert not told, f"rank {rank}: {result.error.trace}"
    return results


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_what_one_mesh_saves_any_other_loads(
    framework: str, is_wrapped: bool, tmp_path: Path
) -> None:
    if framework == "torch":
        pytest.importorskip("torch._dynamo")  # optimizers import it: once, not on each rank
    save, load = partial(mesh_models.save, framework), partial(mesh_models.check_load, framework)
    on_ranks({"all": 1}, {"save": partial(save, None, False, tmp_path / "whole")})
    on_ranks(SOURCE, {"save": partial(save, SOURCE, is_wrapped, tmp_path / "saved")})
    for sizes, is_target_wrapped in TARGETS:
        on_ranks(sizes, {"load": partial(load, sizes, is_target_wrapped, tmp_path)})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_norms_are_those_of_the_whole_model(framework: str) -> None:
    if framework == "torch":
        pytest.importorskip("torch._dynamo")  # optimizers import it: once, not on each rank
    bodies = {
        each: partial(mesh_models.check_clip, framework, SOURCE, each) for each in (False, True)
    }
    for results in on_ranks(SOURCE, bodies).values():
        np.testing.assert_allclose(results[0], mesh_models.whole_norms(), rtol=1e-12)
        assert all(each == results[0] for each in results)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tensor_and_data_parallelism_train_as_one_process_and_go_on_in_one(
    framework: str, tmp_path: Path
) -> None:
    if framework == "torch":
        pytest.importorskip("torch._dynamo")
    from support import mesh_training

    sizes = {"dp": 2, "tp": 2}
    parallel = on_ranks(
        sizes,
        {
            way: partial(mesh_training.on_mesh, framework, way, tmp_path / way)
            for way in ("ddp", "fsdp")
        },
    )
    folders = {None: None, **{way: tmp_path / way for way in parallel}}
    alone = on_ranks(
        {"all": 1},
        {way: partial(mesh_training.alone, framework, each) for way, each in folders.items()},
    )
    norms, parameters = alone[None][0]
    for way, results in parallel.items():
        assert all(each == results[0] for each in results)
        later, loaded = alone[way][0]
        np.testing.assert_allclose(results[0] + later, norms, rtol=1e-12)
        for name, value in parameters.items():
            np.testing.assert_allclose(loaded[name], value, rtol=1e-9, atol=1e-12)
