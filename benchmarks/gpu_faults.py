"""Has ranks on one GPU hang and die: cases of benchmarks/gpu.py."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import torch

import torsh_runtime as tr
from benchmarks.gpu_device import Device
from benchmarks.gpu_training import Figures

VICTIM = 1


def late_timeout(device: Device) -> float:
    return float(device.size(10, 1))


def late(device: Device) -> Figures:
    """Have a GPU not come to a collective, and see whether the error on this rank names it."""
    tensor, timeout = torch.zeros(1024, device=device.name), late_timeout(device)
    tr.all_reduce(tensor)
    device.sync()
    tr.barrier()
    if tr.get_rank() == VICTIM:
        device.be_busy(6 * timeout)
        if not device.is_gpu:
            time.sleep(2 * timeout)
    begun, error = time.monotonic(), None
    while error is None and time.monotonic() - begun < 3 * timeout:
        try:
            tr.all_reduce(tensor, async_op=True).wait()
            time.sleep(0.2)
        except tr.CommError as caught:
            error = caught
    blamed = [*getattr(error, "missing", ()), *([error.rank] if hasattr(error, "rank") else [])]
    return {
        "ours unnamed": float(blamed != [VICTIM]),
        "ours seconds": time.monotonic() - begun,
    }


def death(device: Device, folder: Path) -> Figures:
    """Kill a rank within an all_reduce, and time how soon the others go on as a group of two."""
    tensor, killed = torch.ones(1 << 20, device=device.name), folder / "killed"
    with suppress(tr.CommError):
        for number in range(1_000_000):
            if tr.get_rank() == VICTIM and number == 5:
                killed.write_text(repr(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)
            tr.all_reduce(tensor)
            device.sync()
    device.sync()
    freed = time.time()
    members = [rank for rank in range(tr.get_world_size()) if rank != VICTIM]
    place, group = members.index(tr.get_rank()), tr.group.WORLD
    group.configure(tr.get_store(), "", place, len(members), quorum_id=1, timeout=30)
    tensor.fill_(1)
    tr.all_reduce(tensor)
    device.sync()
    anew = time.time() - freed
    assert float(tensor[0]) == len(members)
    return {"ours free": freed - float(killed.read_text()), "ours anew": anew}
