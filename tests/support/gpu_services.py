"""Remote calls, published weights and monitoring of ranks with a GPU; each function takes the
number of the rank's GPU first."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torsh_runtime as tr
from torshrun.health.gpu_probe import GpuProbe
from torshrun.health.gpu_usage import GpuUsage, usage_of

PATIENCE = 120.0
_LARGE = 1 << 22


def doubled(array: Any) -> tuple[Any, str]:
    """On the worker that is called: what came, twice, and where it is."""
    return array * 2, str(array.device)


def call(gpu: int) -> dict[str, Any]:
    """What arrays of this GPU are when they come back from worker 1, which doubles them."""
    torch, cupy = _frameworks(gpu)
    rank, found = int(os.environ["RANK"]), {}  # type: int, dict[str, Any]
    tr.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        device = f"cuda:{gpu}"
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            sent = torch.arange(6, dtype=dtype, device=device)
            came, there = tr.rpc.rpc_sync("worker1", doubled, args=(sent,))
            found[str(dtype)] = came.tolist(), str(came.dtype), str(came.device), there
        late = _made_late(torch, device)
        came, _ = tr.rpc.rpc_sync("worker1", doubled, args=(late,))
        found["late"] = bool((came == 6).all()), came.numel()
        came, there = tr.rpc.rpc_sync("worker1", doubled, args=(cupy.arange(6.0),))
        found["cupy"] = came.tolist(), type(came).__module__.partition(".")[0], there
    tr.rpc.shutdown()
    return found


def publish(gpu: int) -> dict[str, Any]:
    """What rank 1 has in its model on the GPU of what rank 0 published of its own."""
    torch, _ = _frameworks(gpu)
    rank, found = int(os.environ["RANK"]), {}  # type: int, dict[str, Any]
    tr.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    device = f"cuda:{gpu}"
    torch.manual_seed(rank)
    model = torch.nn.Linear(64, 64).to(device)
    if rank == 0:
        with torch.no_grad():
            model.weight.copy_(_made_late(torch, device)[: 64 * 64].view(64, 64))
            model.bias.fill_(5)
        found["version"] = tr.rpc.publish("policy", {"model": model.state_dict(), "step": 7})
    else:
        with tr.rpc.subscribe("policy").wait(timeout=PATIENCE) as weights:
            weights.copy_to({"model": model})
            found["version"], found["step"] = weights.version, weights["step"]
        found["device"] = str(model.weight.device)
        found["right"] = bool((model.weight == 3).all() and (model.bias == 5).all())
    tr.rpc.shutdown()
    return found


def record(gpu: int) -> dict[str, Any]:
    """What is known of operations of NCCL, and of the memory of this rank."""
    torch, _ = _frameworks(gpu)
    tr.init_process_group("cpu:native,cuda:nccl", device_id=gpu, timeout=PATIENCE)
    monitor = tr.monitoring.DistributedMonitor()
    values = torch.ones(1 << 20, device=f"cuda:{gpu}")
    for step in range(5):
        tr.monitoring.step(step)
        tr.all_reduce(values)
        tr.all_reduce(values, async_op=True).wait()
        torch.cuda.synchronize()
    time.sleep(0.5)  # whoever watches looks every 50 ms
    entries = [each for each in tr.monitoring.recent_operations() if each.operation == "all_reduce"]
    stats = monitor.get_stats().operations["all_reduce"]
    found = {
        "calls": stats.calls,
        "bytes": stats.nbytes,
        "paths": sorted({each.path for each in entries}),
        "states": sorted({each.state for each in entries}),
        "memory": tr.monitoring.memory().allocators.get("torch.cuda"),
    }
    tr.destroy_process_group()
    return found


def meter(gpu: int) -> GpuUsage:
    """What NVML tells of a GPU on which kernels run."""
    torch, _ = _frameworks(gpu)
    watching = GpuProbe(os.environ)

    def read() -> GpuUsage:
        return usage_of(watching.read(20) or ())

    matrix = torch.ones(4096, 4096, device=f"cuda:{gpu}")

    def is_told() -> bool:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.synchronize()
        return (read().busiest or 0) > 0

    try:
        _until(is_told)
        return read()
    finally:
        watching.close()


def _frameworks(gpu: int) -> tuple[Any, Any]:
    torch, cupy = importlib.import_module("torch"), importlib.import_module("cupy")
    torch.cuda.set_device(gpu)
    cupy.cuda.Device(gpu).use()
    return torch, cupy


def _made_late(torch: Any, device: str) -> Any:
    """Threes, which a kernel that runs behind long ones has yet to write."""
    matrix = torch.ones(4096, 4096, device=device)
    values = torch.zeros(_LARGE, device=device)
    torch.cuda.synchronize()
    for _ in range(200):
        matrix @ matrix
    return values.fill_(3)


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it never was so"
        time.sleep(0.05)
