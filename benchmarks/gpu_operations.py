"""Measures single operations on one GPU: cases of benchmarks/gpu.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import torsh_runtime as tr
from benchmarks.gpu_device import MIB, Device, block, peak_of, steps_per_second
from benchmarks.gpu_training import Figures, linears

UNDER_WAY = (0, 50, 200)
_CALLS = 50
Begin = Callable[[torch.Tensor], Any]


def calls(device: Device) -> Figures:
    """Measure the processor time of a call with async_op, with several others under way."""
    begins: dict[str, Begin] = {
        "ours": lambda tensor: tr.all_reduce(tensor, async_op=True),
        "torch": lambda tensor: dist.all_reduce(tensor, async_op=True),
    }
    found: dict[str, list[float]] = {}
    for turn in range(device.size(4, 2)):
        for name, begin in begins.items():
            for ahead in UNDER_WAY:
                taken = _call_time(device, begin, ahead)
                if turn:  # the first one makes connections
                    found.setdefault(f"{name} call, {ahead} under way", []).append(taken)
    return {what: statistics.median(times) for what, times in found.items()}


def _call_time(device: Device, begin: Begin, ahead: int) -> float:
    """Return the microseconds of processor time of a call, the median of several."""
    tensors = [torch.zeros(1024, device=device.name) for _ in range(ahead + _CALLS)]
    device.sync()
    tr.barrier()
    device.be_busy(0.5)
    works = [begin(each) for each in tensors[:ahead]]
    times = []
    for each in tensors[ahead:]:
        start = time.thread_time_ns()
        works.append(begin(each))
        times.append((time.thread_time_ns() - start) / 1e3)
        if not ahead:
            works.pop().wait()
            device.sync()
    for work in works:
        work.wait()
    device.sync()
    return statistics.median(times)


def held(device: Device) -> Figures:
    """Measure memory that collectives hold after a wait, while the GPU has not come to them."""
    tr.all_reduce(torch.zeros(MIB // 4, device=device.name))
    device.forget()
    before = device.allocated()
    device.be_busy(2.0)
    for _ in range(200):
        tensor = torch.zeros(MIB // 4, device=device.name)
        tr.all_reduce(tensor, async_op=True).wait()
        del tensor
    grown = device.peak() - before
    device.sync()
    return {"ours growth": grown / MIB}


def graph(device: Device) -> Figures:
    """Compare a step with collectives in a CUDA graph with the same step without one."""
    width = device.size(256, 16)
    eager, captured = (linears(width, 8).to(device.name) for _ in range(2))
    data = torch.randn(16, width, device=device.name) + tr.get_rank()

    def step(model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            parameter.grad = None
        model(data).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            tr.all_reduce(parameter.grad)
            parameter.data.sub_(parameter.grad, alpha=1e-3)

    for _ in range(3):
        step(eager)
    replay = _captured(device, lambda: step(captured), warm=3)
    seconds = {"eager": block(device, lambda: step(eager), 10)}
    seconds["ours"] = block(device, replay, 10)
    pairs = zip(eager.parameters(), captured.parameters(), strict=True)
    with torch.no_grad():
        error = max(float((one - other).abs().max()) for one, other in pairs)
    return {"ours error": error, **{f"{name} step": value for name, value in seconds.items()}}


def _captured(device: Device, step: Callable[[], None], warm: int) -> Callable[[], None]:
    """Return what replays a step that was captured after `warm` ordinary ones."""
    if not device.is_gpu:
        for _ in range(warm):
            step()
        return step
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm):
            step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        step()
    return recorded.replay


def attention(device: Device) -> Figures:
    """Compare attention over parts of a sequence with one process's over half of the heads."""
    tokens, heads = device.size(8192, 64), device.size(16, 2)
    dtype = torch.bfloat16 if device.is_gpu else torch.float32
    torch.manual_seed(0)
    whole = [
        torch.randn(1, heads, tokens, device.size(128, 8), dtype=dtype, device=device.name)
        for _ in range(4)
    ]
    world = tr.group.WORLD
    parts = [tr.context_shard(each, world, dim=2) for each in whole]
    halves = [each[:, : heads // 2].contiguous() for each in whole]
    steps = {
        "ours": lambda: _both_passes(lambda *each: tr.context_attention(*each, world), parts),
        "sdpa": lambda: _both_passes(_sdpa, halves),
    }
    expected = _sdpa(*whole[:3])
    found = tr.context_gather(tr.context_attention(*parts[:3], world), world, dim=2)
    error = float((found - expected).abs().max())
    times = steps_per_second(device, steps, device.size(10, 1))
    return {
        "ours error": error,
        **{f"{name} step": seconds for name, seconds in times.items()},
        **{f"{name} peak": peak_of(device, step, 1) for name, step in steps.items()},
    }


def _sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _both_passes(attend: Callable[..., torch.Tensor], parts: list[torch.Tensor]) -> None:
    leaves = [each.detach().requires_grad_() for each in parts[:3]]
    attend(*leaves).backward(parts[3])


def clip(device: Device) -> Figures:
    """Compare the norm of many gradients with torch's, also on a stream of its own."""
    count, size = 50, device.size(4_000_000, 1000)
    model = torch.nn.ParameterList(
        torch.nn.Parameter(torch.zeros(size, device=device.name)) for _ in range(count)
    )
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    gradients = [parameter.grad for parameter in model]
    expected = (count * size) ** 0.5
    steps = {
        "ours": lambda: tr.clip_grad_norm_(model, 1e30),
        "torch": lambda: torch.nn.utils.get_total_norm(gradients),
    }
    times = steps_per_second(device, steps, device.size(10, 1))
    error = abs(float(tr.clip_grad_norm_(model, 1e30)) / expected - 1)
    return {
        "ours error": error,
        "ours error on a side stream": _on_a_side_stream(device, model, expected),
        **{f"{name} step": seconds for name, seconds in times.items()},
    }


def _on_a_side_stream(device: Device, model: torch.nn.ParameterList, norm: float) -> float:
    """Return the relative error of a norm of gradients that the stream has still to make."""
    if not device.is_gpu:
        return 0.0
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        device.be_busy(0.5)
        for parameter in model:
            assert parameter.grad is not None
            parameter.grad.mul_(2)
        found = float(tr.clip_grad_norm_(model, 1e30))
    device.sync()
    return abs(found / (2 * norm) - 1)
