"""Pipelines whose messages go as they do between GPUs; each function one rank's part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.pipeline_training import CUTS, nn_loss, nn_model

import torsh_runtime as tr
from torsh_runtime.backends.base import BackendType
from torsh_runtime.parallel.pipeline import lanes


def on_lanes(rank: int, body: Callable[[int], Any]) -> Any:
    """What body(rank) returns where messages between stages go as they do between GPUs, over groups
    that have no tags, with arrays that are on none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "is_on_gpu", lambda array: True)
        kinds = dict.fromkeys(("cpu", "cuda"), BackendType.NATIVE)
        patch.setattr(lanes, "by_device", lambda kind: kinds)
        return body(rank)


def without_lanes(rank: int) -> list[str]:
    """What is said of a model on GPUs whose groups, or other ranks, are not there."""
    said = []
    for are_there, queues in ((True, 32), (rank > 0, 32), (True, 32 if rank else 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lanes, "is_on_gpu", lambda array, found=are_there: found)
            patch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", str(queues))
            try:
                tr.PipelineParallel(nn_model(), 2, cuts=CUTS[2], loss_fn=nn_loss)
                said.append("")
            except tr.ConfigError as error:
                said.append(str(error))
    return said
