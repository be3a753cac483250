import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The worker as its script sees itself: beside its adapters, outside any package."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    return importlib.import_module("worker")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("operation", ["all_reduce", "all_to_all"])
def test_a_whole_size_is_measured_on_one_process(
    worker: ModuleType, tmp_path: Path, operation: str, dtype: str
) -> None:
    plan = {"library": "memcpy", "operation": operation, "dtype": dtype, "ranks": 1, "sizes": [64],
            "seconds": 0.002, "iterations": [3, 50], "pingpong": None}  # fmt: skip
    figures = worker.Worker(worker.connect("memcpy", 1), plan, tmp_path).measure(64)
    assert figures["bytes"] == 64
    assert figures["before_ns"] is None
    assert 3 <= figures["iterations"] <= 50
    assert 0 < figures["min_us"] <= figures["median_us"] <= figures["max_us"]


def test_a_library_that_found_other_ranks_is_refused(worker: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="memcpy found 1 ranks instead of 2"):
        worker.connect("memcpy", 2)
