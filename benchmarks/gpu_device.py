"""Says how the cases of benchmarks/gpu.py use their device, in a rank's process.

The CPU stands in for it where the cases themselves are tested.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import torsh_runtime as tr
from benchmarks.spawn import free_port

MIB = 1 << 20
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Device:
    """Describes the device of this rank, and the sizes of what runs there."""

    name: str
    """ "cuda:0" or "cpu"."""
    is_quick: bool

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def size(self, full: int, quick: int) -> int:
        return quick if self.is_quick else full

    def sync(self) -> None:
        """Wait until the device has done everything."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.is_gpu else 0

    def forget(self) -> None:
        """Give back memory that nobody uses, and count the peak from now on."""
        gc.collect()
        if self.is_gpu:
            self.sync()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Return the most bytes that were allocated since forget()."""
        return torch.cuda.max_memory_allocated() if self.is_gpu else 0

    def be_busy(self, seconds: float) -> None:
        """Have the current stream do nothing for that long, at 2 GHz."""
        if self.is_gpu:
            torch.cuda._sleep(int(seconds * 2e9))  # type: ignore[no-untyped-call]


def join(device: Device, timeout: float = 60.0) -> tr.ProcessGroup:
    """Create our default group; several ranks may have the device."""
    if not device.is_gpu:
        return tr.init_process_group("native", timeout=timeout)
    rank = os.environ["RANK"]  # NCCL refuses two ranks of one host on one GPU
    os.environ |= {"NCCL_HOSTID": f"host of rank {rank}", "NCCL_SOCKET_IFNAME": "lo"}
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.set_device(device.name)  # which DeviceMesh keeps only once CUDA is initialized
    return tr.init_process_group("cpu:native,cuda:nccl", device_id=0, timeout=timeout)


def join_torch(device: Device) -> None:
    """Create torch's default group, beside ours, at an address that our first rank names."""
    told = [f"tcp://127.0.0.1:{free_port()}"]
    tr.broadcast_object_list(told)
    place: dict[str, Any] = {"rank": tr.get_rank(), "world_size": tr.get_world_size()}
    if device.is_gpu:
        place["device_id"] = torch.device(device.name)
    dist.init_process_group("nccl" if device.is_gpu else "gloo", told[0], **place)


def steps_per_second(device: Device, steps: Mapping[str, Step], count: int) -> dict[str, float]:
    """Return the median seconds of a step of each, in three interleaved rounds of `count`."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for name in steps:
        block(device, steps[name], 2)  # makes connections
    for _ in range(device.size(3, 1)):
        for name, step in steps.items():
            found[name].append(block(device, step, count))
    return {name: statistics.median(times) for name, times in found.items()}


def block(device: Device, step: Step, count: int) -> float:
    """Return the mean seconds of steps between two synchronisations."""
    device.sync()
    tr.barrier()
    start = time.perf_counter()
    for _ in range(count):
        step()
    device.sync()
    return (time.perf_counter() - start) / count


def peak_of(device: Device, step: Step, count: int) -> float:
    """Return by how many MiB memory grew at most over these steps."""
    device.forget()
    before = device.allocated()
    block(device, step, count)
    return (device.peak() - before) / MIB
