"""Remote calls, published weights and monitoring on real GPUs. One GPU is enough for all ranks."""

from __future__ import annotations

import pytest
from support.real_gpus import needs_gpu, passed, run_on_gpus

pytestmark = [pytest.mark.gpu, needs_gpu]


def test_arrays_of_gpus_go_to_a_function_on_another_rank_and_back() -> None:
    found, _ = passed(run_on_gpus(2, "call"))
    for dtype in ("torch.float32", "torch.bfloat16", "torch.int64"):
        values, kind, here, there = found[dtype]
        assert values == [0, 2, 4, 6, 8, 10]
        assert kind == dtype
        assert here.startswith("cuda")
        assert there.startswith("cuda")
    assert found["late"] == (True, 1 << 22)
    values, library, there = found["cupy"]
    assert (values, library) == ([0, 2, 4, 6, 8, 10], "cupy")
    assert "CUDA" in there


def test_published_weights_come_from_a_gpu_and_go_to_one() -> None:
    wrote, read = passed(run_on_gpus(2, "publish"))
    assert read["version"] == wrote["version"]
    assert read["step"] == 7
    assert read["right"]
    assert read["device"].startswith("cuda")


def test_operations_of_nccl_are_recorded_and_counted() -> None:
    for found in passed(run_on_gpus(2, "record")):
        assert found["calls"] == 10
        assert found["bytes"] == 10 * (4 << 20)
        assert found["paths"] == ["nccl"]
        assert found["states"] == ["done"]
        assert found["memory"] >= 4 << 20


def test_nvml_tells_how_busy_a_gpu_is() -> None:
    [usage] = passed(run_on_gpus(1, "meter"))
    assert 0 < usage.busiest <= 1
