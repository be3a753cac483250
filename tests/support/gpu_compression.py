"""What ranks with a GPU compress; each function takes the number of the rank's GPU first."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from support.compressed import COMPRESSORS, gradients

import torsh_runtime as tr
from torsh_runtime.compression import FlatBucket

SHAPES = [(200, 30), (7,), (20, 30), (4, 5, 10)]
SIZE = 6807
CHANCES = ("int8", "int8-feedback")
"""Those whose rounding is drawn by the GPU's own generator."""


def compress(gpu: int, steps: int) -> dict[str, tuple[float, bool, bool]]:
    """By compressor: how far averages of tensors on GPUs are from those of numpy arrays, of the
    largest value; whether the current stream had nothing to do before it waited; and whether a
    step in which torch raises an error where the processor waits for a stream went through."""
    torch = importlib.import_module("torch")
    group = tr.init_process_group("cpu:native,cuda:nccl", device_id=gpu, timeout=120)
    found = {}
    for name, make in COMPRESSORS.items():
        here, there, far, is_free = make(), make(), 0.0, True
        for step in range(steps):
            wanted = gradients(step, group.rank, SIZE)
            got = torch.from_numpy(wanted.copy()).cuda(gpu)
            here(group, _bucket(wanted)).wait()
            torch.cuda.synchronize()
            work = there(group, _bucket(got))
            is_free = is_free and torch.cuda.current_stream().query()
            work.wait()
            apart = np.abs(got.cpu().numpy() - wanted).max()
            far = max(far, float(apart / np.abs(wanted).max()))
        found[name] = far, is_free, _goes_without_waits(torch, group, there, gpu)
    tr.destroy_process_group()
    return found


def _bucket(array: Any) -> FlatBucket:
    return FlatBucket(array, SHAPES, [f"g{i}" for i in range(len(SHAPES))])


def _goes_without_waits(torch: Any, group: Any, compressor: Any, gpu: int) -> bool:
    tensor = torch.from_numpy(gradients(9, group.rank, SIZE)).cuda(gpu).to(torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        compressor(group, _bucket(tensor)).wait()
    except RuntimeError:
        return False
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return True
