"""What data parallelism computes on a GPU beside the CPU, and how often it waits for the GPU."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer

Case = tuple[Callable[[], object], Callable[[], object]]
"""What is done, and whether its result is right."""
SIZES = (1, 7, 1000, 1 << 19)


def find_waits(gpu: int) -> dict[str, tuple[bool, int]]:
    """By what is done: whether the result is the CPU's, and the number of waits."""
    torch = importlib.import_module("torch")
    torch.cuda.set_device(gpu)
    tr.init_process_group("cpu:native,cuda:nccl", device_id=gpu)
    found = {}
    for case in (_clips, _scales, _normalises, _sends, _saves):
        work, is_right = case(torch, f"cuda:{gpu}")
        torch.cuda.synchronize()
        waits = _waits_of(torch, work)
        found[case.__name__] = (bool(is_right()), waits)
    tr.destroy_process_group()
    return found


def _waits_of(torch: Any, work: Callable[[], object]) -> int:
    """How often torch finds itself waiting for the GPU in work()."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            work()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in told)


def _parameters(torch: Any, device: str) -> tuple[list[Any], list[Any]]:
    torch.manual_seed(0)
    kinds = (torch.float32, torch.bfloat16)
    gradients = [torch.randn(size).to(kind) for size in SIZES for kind in kinds]
    there = [torch.nn.Parameter(torch.zeros_like(each, device=device)) for each in gradients]
    for parameter, gradient in zip(there, gradients, strict=True):
        parameter.grad = gradient.to(device, copy=True)
    return there, gradients


def _clips(torch: Any, device: str) -> Case:
    there, gradients = _parameters(torch, device)
    expected = torch.cat([each.double() for each in gradients]).norm()
    norms: list[float] = []
    model = torch.nn.ParameterList(there)

    def is_right() -> bool:
        clipped = torch.cat([each.grad.double() for each in there]).norm().cpu()
        return bool((clipped - 1).abs() < 1e-2) and abs(norms[0] / float(expected) - 1) < 1e-5

    return lambda: norms.append(tr.clip_grad_norm_(model, 1.0)), is_right


def _scales(torch: Any, device: str) -> Case:
    there, gradients = _parameters(torch, device)
    optimizer = torch.optim.SGD(there, lr=0.0)
    scaler = tr.ShardedGradScaler(init_scale=8.0)
    pairs = zip(there, gradients, strict=True)
    return (
        lambda: scaler.unscale_(optimizer),
        lambda: all(torch.equal(one.grad.cpu() * 8, other) for one, other in pairs),
    )


def _normalises(torch: Any, device: str) -> Case:
    torch.manual_seed(0)
    whole = torch.randn(8, 3, 5)
    rows = slice(0, 3) if tr.get_rank() == 0 else slice(3, 8)
    layer = tr.SyncBatchNorm(3).to(device)
    alone = torch.nn.BatchNorm1d(3)
    there = whole[rows].to(device).requires_grad_()
    here = whole.clone().requires_grad_()

    def run() -> None:
        (layer(there) ** 3).sum().backward()

    def is_right() -> bool:
        (alone(here) ** 3).sum().backward()
        pairs = ((there.grad, here.grad[rows]), (layer.running_var, alone.running_var))
        return all(torch.allclose(one.cpu(), other, rtol=1e-4, atol=1e-4) for one, other in pairs)

    return run, is_right


def _sends(torch: Any, device: str) -> Case:
    from torsh_runtime.parallel.agreement import send_from

    values = [torch.arange(size) + 100 * rank for rank in range(2) for size in SIZES]
    half = len(SIZES)
    own = values[half:] if tr.get_rank() == 1 else values[:half]
    there = [each.to(device) for each in own]
    group = tr.new_group()
    return (
        lambda: send_from(1, there, group),
        lambda: all(torch.equal(a.cpu(), b) for a, b in zip(there, values[half:], strict=True)),
    )


def _saves(torch: Any, device: str) -> Case:
    there = {f"{number}": torch.zeros(1 << 20, device=device) for number in range(8)}
    folder = [tempfile.mkdtemp() if tr.get_rank() == 0 else ""]
    tr.broadcast_object_list(folder)
    saver = Checkpointer(folder[0])

    def run() -> None:
        torch.cuda._sleep(int(1e8))  # what comes behind it has not been done when the copies begin
        for number, each in enumerate(there.values()):
            each.fill_(number)
        saver.save(1, there)

    def is_right() -> bool:
        loaded = saver.load({name: torch.zeros(0) for name in there})
        return all((each == n).all() for n, each in enumerate(loaded.values.values()))

    return run, is_right
