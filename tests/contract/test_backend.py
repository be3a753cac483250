"""What every backend must do, run over all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.process_worlds import WORLDS, NotHereError, run_cases
from support.suite import CASES
from support.suite.cases import Case

from torsh_runtime.backends.single import SingleBackend

THREADS = ("native-1", "native-2", "native-3", "native-5")
PROCESSES = {"test_gloo": ("gloo-3", "gloo-2"), "test_mpi": ("mpich-3", "openmpi-3")}
"""One library each for each run, and the others with --soak: they take minutes."""


def _pairs(*worlds: str) -> list[Any]:
    return [
        pytest.param(world, case, id=f"{world}-{case.name}")
        for world in worlds
        for case in CASES.values()
        if int(world.split("-")[1]) >= case.ranks and (world in WORLDS or not case.processes)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    worlds = PROCESSES.get(metafunc.function.__name__, ())
    if worlds:
        chosen = worlds if metafunc.config.getoption("--soak") else worlds[:1]
        metafunc.parametrize(("world", "case"), _pairs(*chosen))


@pytest.mark.parametrize(("world", "case"), _pairs("single-1"))
def test_single(world: str, case: Case) -> None:
    case.body(SingleBackend())


@pytest.mark.parametrize(("world", "case"), _pairs(*THREADS))
def test_native(thread_world: Any, world: str, case: Case) -> None:
    for result in thread_world(int(world.split("-")[1]), case.body):
        if error := getattr(result, "error", None):
            raise error


Results = Callable[[str, str], str]


@pytest.fixture(scope="session")
def process_results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Results:
    """results(world, case): what went wrong. A world runs all cases that were asked for at once."""
    asked: dict[str, list[str]] = {}
    for item in request.session.items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if params.get("world") in WORLDS:
            asked.setdefault(params["world"], []).append(params["case"].name)
    known: dict[str, dict[str, str]] = {}

    def results(world: str, case: str) -> str:
        if world not in known:
            known[world] = run_cases(world, asked[world], tmp_path_factory.mktemp(world))
        return known[world][case]

    return results


def _check(results: Results, world: str, case: Case) -> None:
    try:
        wrong = results(world, case.name)
    except NotHereError as error:
        pytest.skip(str(error))
    assert not wrong, wrong


@pytest.mark.torch
def test_gloo(process_results: Results, world: str, case: Case) -> None:
    _check(process_results, world, case)


@pytest.mark.mpi
def test_mpi(process_results: Results, world: str, case: Case) -> None:
    _check(process_results, world, case)


@pytest.mark.torch
def test_gloo_names_a_killed_rank(tmp_path: Path) -> None:
    case = "a_killed_rank_is_named"
    try:
        wrong = run_cases("gloo-3", [case], tmp_path)[case]
    except NotHereError as error:
        pytest.skip(str(error))
    assert wrong.startswith("rank 0 did not come to it")  # which is the group's last
    assert "rank 1" not in wrong
    assert "rank 2" not in wrong
