"""torch.distributed on real GPUs, with torsh in gloo's stead. One GPU is enough for all ranks."""

from __future__ import annotations

import pytest
from support.real_gpus import needs_gpu, passed, run_on_gpus

pytestmark = [pytest.mark.gpu, needs_gpu]


def test_nccl_has_the_tensors_on_gpus_where_torsh_stands_in_for_gloo() -> None:
    for found in passed(run_on_gpus(2, "torch_distributed", TORSH_TORCH_BACKEND="torsh")):
        assert found["name"] == "torsh"
        assert found["backend"] == "cpu:gloo,cuda:nccl"
        assert found["host"] == found["gpu"] == [2, 2, 2]
        assert found["gradient"] == [[3, 3, 3]]
