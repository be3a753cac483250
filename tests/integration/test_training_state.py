"""Schedules, scalers and random numbers go on exactly; what ranks have differently is told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from support import state_training as training
from support.torch_ranks import passed
from support.worlds import run_processes

from torshrun.workers.commit_memory import CommitMemory

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

RANKS = 2


def on_ranks(body: Callable[[int, Path, dict[str, str]], Any], directory: Path) -> list[Any]:
    with closing(CommitMemory(RANKS)) as memory:

        def run(rank: int) -> Any:
            told = {"TORSH_COMMIT_MEMORY": memory.told(), "LOCAL_RANK": str(rank)}
            return body(rank, directory, told)

        return passed(run_processes(RANKS, run))


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_all_goes_on_as_if_it_had_not_stopped(way: str, tmp_path: Path) -> None:
    def body(rank: int, directory: Path, memory: dict[str, str]) -> Any:
        return training.go_on(way, rank, RANKS, directory, memory)

    ends = on_ranks(body, tmp_path)
    for own in ends:
        for source in ("checkpoint", "commit"):
            assert own[source][0] == own["undisturbed"][0]
            for found, expected in zip(own[source][1], own["undisturbed"][1], strict=True):
                np.testing.assert_array_equal(found, expected)
    elsewhere = partial(training.load_elsewhere, way, ranks=3, directory=tmp_path)
    for told in passed(run_processes(3, elsewhere)):
        assert told == ends[0]["undisturbed"][0]


def test_what_is_kept_once_must_be_the_same_on_all_ranks(tmp_path: Path) -> None:
    for said in on_ranks(training.differing, tmp_path):
        assert len(said) == 4
        for text, name in zip(said, ["noise"] * 2 + ["schedule"] * 2, strict=True):
            assert f"{name!r} has another state on rank 1 than on rank 0" in text
            assert "put it in tr.checkpoint.PerRank(...)" in text
    assert [each.name for each in tmp_path.iterdir()] == ["step-00000001"]


def test_of_values_and_buffers_all_are_rank_0s(tmp_path: Path) -> None:
    told = on_ranks(training.values_of_ranks, tmp_path)
    (arrays, buffers), *_ = told[0]
    assert any((one != other).any() for one, other in zip(buffers, told[1][0][1], strict=True))
    for _, *found in told:
        for values, its_buffers in found:
            assert values["number"] == 0
            np.testing.assert_equal(values["arrays"], arrays)
            np.testing.assert_equal(its_buffers, buffers)
