"""Stages, data and parts of layers together: a training on any mesh is that of one process."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support import model_parallel
from support.forked import Raised
from support.worlds import run_in_one_world

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])

AT_ONCE = 12
"""Cases in one world, which has a limit of its own."""
Case = tuple[str, str, int, int, int]
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv")
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"
FEW: tuple[Case, ...] = (
    (DDP, "1f1b", 2, 2, 2),
    (DDP, "zb-h1", 2, 2, 2),
    (DDP, "interleaved", 2, 1, 4),
    (FSDP, "1f1b", 2, 2, 2),
    (FSDP, "zbv", 2, 2, 1),
)
"""Wrapper, schedule, and the sizes of pp, dp and tp."""
ALL: tuple[Case, ...] = tuple(
    (wrapper, schedule, pp, dp, tp)
    for wrapper in (DDP, FSDP)
    for pp in (1, 2, 4, 8)
    for dp in (1, 2, 4, 8)
    for tp in (1, 2, 4, 8)
    if 1 < pp * dp * tp <= 8
    for schedule in SCHEDULES
    if pp <= 2 or schedule not in ("interleaved", "zbv")  # there are eight layers
)


@cache
def trained(framework: str, cases: tuple[Case, ...], steps: int) -> dict[Case, list[Any]]:
    found: dict[Case, list[Any]] = {}
    with TemporaryDirectory() as directory:
        bodies = {each: partial(_trained, framework, each, steps, directory) for each in cases}
        for ranks in sorted({_size(case) for case in cases}):
            chosen = [case for case in cases if _size(case) == ranks]
            for first in range(0, len(chosen), AT_ONCE):
                some = {each: bodies[each] for each in chosen[first : first + AT_ONCE]}
                found |= run_in_one_world(ranks, some, 120.0)
    return found


def _size(case: Case) -> int:
    return case[2] * case[3] * case[4]


def _trained(framework: str, case: Case, steps: int, directory: str, rank: int) -> Any:
    wrapper, schedule, pp, dp, tp = case
    sizes, place = {"pp": pp, "dp": dp, "tp": tp}, Path(directory, "-".join(map(str, case)))
    return model_parallel.on_mesh(framework, sizes, schedule, wrapper, steps, place)


def check(results: list[Any]) -> None:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace
        far = {name: size for name, size in result["apart"].items() if not size < 1e-9}
        assert not far
        assert result["bits"] == results[0]["bits"]


@with_both
@pytest.mark.parametrize("case", FEW, ids=str)
def test_trains_as_one_process_does(case: Case, framework: str) -> None:
    check(trained(framework, FEW, 2)[case])


@with_both
def test_trains_so_on_every_mesh_of_up_to_eight_ranks(
    framework: str, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("every mesh and schedule: only with --soak")
    for case, results in trained(framework, ALL, 20).items():
        print(case)
        check(results)
