import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

_FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The worker as its script sees itself: beside its adapters, outside any package."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    return importlib.import_module("worker")


def test_the_pattern_verifies_and_any_wrong_element_is_named(worker: ModuleType) -> None:
    array = np.zeros((1 << 20) + 100, np.float32)
    worker.fill(array, 7, 3)
    worker.verify(array, 7, 3, "here")
    array[-1] += 1
    with pytest.raises(SystemExit, match=rf"WRONG RESULT: here, .* element {array.size - 1}"):
        worker.verify(array, 7, 3, "here")


def test_not_a_number_is_wrong(worker: ModuleType) -> None:
    array = np.full(4, np.nan, np.float32)
    with pytest.raises(SystemExit):
        worker.verify(array, 0, 1, "here")


def test_a_part_continues_the_pattern_of_the_whole(worker: ModuleType) -> None:
    whole, part = np.zeros(1000, np.float32), np.zeros(500, np.float32)
    worker.fill(whole, 0, 1)
    worker.fill(part, 500, 1)
    assert np.array_equal(whole[500:], part)


def test_a_whole_size_is_measured_on_one_process(worker: ModuleType, tmp_path: Path) -> None:
    plan = {"library": "memcpy", "operation": "all_reduce", "ranks": 1, "sizes": [64],
            "seconds": 0.002, "iterations": [3, 50], "pingpong": None}  # fmt: skip
    figures = worker.Worker(worker.connect("memcpy", 1), plan, tmp_path).measure(64)
    assert figures["bytes"] == 64
    assert figures["before_ns"] is None
    assert 3 <= figures["iterations"] <= 50
    assert 0 < figures["min_us"] <= figures["median_us"] <= figures["max_us"]
