"""Stages, data, parts of layers and of sequences, and experts together: a training on any mesh is
that of one process."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from support import model_parallel
from support.model_parallel import DENSE, Kind
from support.forked import Raised
from support.worlds import run_in_one_world

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])

AT_ONCE = 12
"""Cases in one world, which has a limit of its own."""


class Case(NamedTuple):
    """A wrapper, a schedule, and sizes of the axes."""

    wrapper: str
    schedule: str
    pp: int
    dp: int
    tp: int
    cp: int = 1
    kind: Kind = DENSE

    @property
    def sizes(self) -> dict[str, int]:
        return {"pp": self.pp, "dp": self.dp, "cp": self.cp, "tp": self.tp}


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv")
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"
ANY = ("dp", "cp", "tp")
FEW: tuple[Case, ...] = (
    Case(DDP, "1f1b", 2, 2, 2),
    Case(DDP, "zb-h1", 2, 2, 2, 1, Kind(checkpoints=True)),
    Case(DDP, "interleaved", 2, 1, 4),
    Case(FSDP, "1f1b", 2, 2, 2),
    Case(FSDP, "zbv", 2, 2, 1),
    Case(DDP, "1f1b", 2, 1, 1, 2),
    Case(DDP, "1f1b", 1, 2, 2, 1, Kind(4, ANY)),
    Case(DDP, "zb-h1", 1, 4, 1, 1, Kind(2)),
    Case(FSDP, "1f1b", 2, 2, 1, 2, Kind(2, method="all_to_all")),
)
ALL: tuple[Case, ...] = tuple(
    Case(wrapper, schedule, pp, dp, tp)
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
    return prod(case.sizes.values())


def _trained(framework: str, case: Case, steps: int, directory: str, rank: int) -> Any:
    place = Path(directory, str(abs(hash(case))))
    what = case.sizes, case.schedule, case.wrapper
    return model_parallel.on_mesh(framework, *what, steps, place, case.kind)


def check(results: list[Any]) -> None:
    for result in results:
        assert not isinstance(result, Raised), result.error.trace
        far = {name: size for name, size in result["apart"].items() if not size < 1e-9}
        assert not far
        assert result["bits"] == results[0]["bits"]
        assert result["reloaded"]


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
