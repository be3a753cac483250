"""Stages, data, parts of layers and of sequences, and experts together: a training on any mesh is
that of one process."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from support import model_parallel
from support.forked import HANGS, Raised
from support.model_parallel import DENSE, Kind, in_one_process
from support.worlds import be_rank, run_in_one_world, run_processes

has_torch = importlib.util.find_spec("torch") is not None
needs_torch = [pytest.mark.torch, pytest.mark.skipif(not has_torch, reason="needs torch")]
with_both = pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=needs_torch)])

AT_ONCE = 6
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


WITH_NN = (0, 2, 4, 6, 7, 10, 13)
"""Cases of FEW by place: one of each kind. The others train torch's models, as what both share
does not depend on the framework; with --soak those of nn as well.
"""
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv")
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"
ANY = ("dp", "cp", "tp")
FEW: tuple[Case, ...] = (
    Case(DDP, "1f1b", 2, 2, 2),
    Case(DDP, "zb-h1", 2, 2, 2, 1, Kind(checkpoints=True)),
    Case(DDP, "interleaved", 2, 1, 4),
    Case(DDP, "1f1b", 2, 2, 1, 1, Kind(passes=2)),
    Case(FSDP, "gpipe", 2, 2, 1, 1, Kind(passes=2, checkpoints=True)),
    Case(FSDP, "1f1b", 2, 2, 2),
    Case(FSDP, "zbv", 2, 2, 1),
    Case(DDP, "1f1b", 2, 1, 1, 2),
    Case(DDP, "1f1b", 1, 2, 2, 1, Kind(4, ANY)),
    Case(DDP, "zb-h1", 1, 4, 1, 1, Kind(2)),
    Case(DDP, "1f1b", 1, 2, 2, 1, Kind(2, ANY, spreads=True)),
    Case(DDP, "interleaved", 2, 2, 1, 2, Kind(2, spreads=True)),
    Case(DDP, "1f1b", 2, 2, 2, 1, Kind(4, ANY, in_parts=True, spreads=True)),
    Case(FSDP, "zb-h1", 2, 2, 2, 1, Kind(2, in_parts=True)),
    Case(FSDP, "1f1b", 1, 2, 1, 2, Kind(2, method="all_to_all", strategy="hybrid")),
    Case(FSDP, "zb-h1", 2, 2, 1, 2, Kind(2)),
)


def _grid(is_plain: bool) -> Iterator[Case]:
    """Every mesh of up to eight ranks with every schedule: of stages, data and parts of layers, or
    those with parts of sequences or experts as well, by methods of attention and strategies of
    sharding in turn."""
    methods = cycle(("ring", "all_gather", "all_to_all"))
    strategies = cycle(("full", "grad-and-optimizer", "none", "hybrid"))
    sizes = [each for each in product((1, 2, 4, 8), repeat=4) if 1 < prod(each) <= 8]
    for wrapper, (pp, dp, tp, cp), experts in product((DDP, FSDP), sizes, (0, 2, 4, 8)):
        if is_plain != (cp == 1 and not experts) or (experts and dp * tp * cp % experts):
            continue
        for schedule in SCHEDULES if pp <= 2 else ("gpipe", "1f1b", "zb-h1"):  # of eight layers
            kind = DENSE
            if not is_plain:
                kind = Kind(experts, ANY, next(methods), strategy=next(strategies))
            yield Case(wrapper, schedule, pp, dp, tp, cp, kind)


@cache
def trained(framework: str, cases: tuple[Case, ...], steps: int) -> dict[Case, list[Any]]:
    found: dict[Case, list[Any]] = {}
    kinds = {bool(case.kind.experts) for case in cases}
    be_rank(0, 1, lambda _: [in_one_process(framework, steps, each) for each in kinds])
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
    replicas: dict[str, bytes] = {}
    for result in results:
        assert not isinstance(result, Raised), result.error.trace
        far = {name: size for name, size in result["apart"].items() if not size < 1e-9}
        assert not far
        assert result["bits"] == results[0]["bits"]
        assert result["reloaded"]
        replicas = {**result["replicas"], **replicas}
    for result in results:
        assert result["replicas"].items() <= replicas.items()


@pytest.mark.slow
@with_both
@pytest.mark.parametrize("case", FEW, ids=str)
def test_trains_as_one_process_does(
    case: Case, framework: str, request: pytest.FixtureRequest
) -> None:
    has_all = framework == "torch" or request.config.getoption("--soak")
    cases = FEW if has_all else tuple(FEW[place] for place in WITH_NN)
    if case not in cases:
        pytest.skip("with torch's models; with those of nn only with --soak")
    check(trained(framework, cases, 2)[case])


@with_both
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "experts and sequences"])
def test_trains_so_on_every_mesh_of_up_to_eight_ranks(
    framework: str, is_plain: bool, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("every mesh and schedule: only with --soak")
    for case, results in trained(framework, tuple(_grid(is_plain)), 20).items():
        print(case)
        check(results)


REPLICATED: tuple[tuple[str, Case], ...] = tuple(
    (framework, Case(DDP, "1f1b", *sizes, Kind(*kind, dtype=dtype, is_shifted=True)))
    for framework, dtype in (("torch", "float32"), ("torch", "bfloat16"), ("nn", "float32"))
    for sizes, kind in (((1, 2, 2, 1), (4, ANY)), ((1, 1, 4, 1), (2, ANY)))
)


@cache
def replicated(framework: str, cases: tuple[Case, ...], steps: int) -> dict[Case, list[Any]]:
    found: dict[Case, list[Any]] = {}
    for ranks in sorted({_size(case) for case in cases}):
        bodies = {
            case: partial(
                model_parallel.replicas, framework, case.sizes, case.schedule, steps, case.kind
            )
            for case in cases
            if _size(case) == ranks
        }
        found |= run_in_one_world(ranks, bodies, 120.0, hangs=max(HANGS, 50.0 * steps))
    return found


def check_replicas(results: list[Any]) -> None:
    whole: dict[str, bytes] = {}
    for result in results:
        assert not isinstance(result, Raised), result.error.trace
        whole = {**result, **whole}
    for result in results:
        assert [name for name, bits in result.items() if bits != whole[name]] == []


@pytest.mark.torch
@pytest.mark.skipif(not has_torch, reason="needs torch")
@pytest.mark.parametrize(("framework", "case"), REPLICATED, ids=str)
def test_ranks_with_the_same_parameters_keep_the_same_bits(framework: str, case: Case) -> None:
    some = tuple(each for name, each in REPLICATED if name == framework)
    check_replicas(replicated(framework, some, 5)[case])


@with_both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_do_so_on_every_mesh_with_experts(
    framework: str, dtype: str, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("every mesh, 200 steps: only with --soak")
    if (framework, dtype) == ("nn", "bfloat16"):
        pytest.skip("numpy has no bfloat16")
    cases = tuple(
        each._replace(kind=replace(each.kind, dtype=dtype, is_shifted=True))
        for each in _grid(is_plain=False)
        if each.kind.experts and (each.wrapper, each.schedule) == (DDP, "1f1b")
    )
    for case in cases:  # each in a world of its own, which has its own time
        print(case, flush=True)
        check_replicas(replicated(framework, (case,), 200)[case])


def test_what_does_not_fit_is_refused_on_every_rank() -> None:
    for result in run_processes(4, model_parallel.refusals):
        assert not isinstance(result, Raised), result.error.trace
        assert [name for name, said in result.items() if not said] == []
