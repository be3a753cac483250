"""Runs one rank of pipeline_layers.py: `pipeline_layers_worker.py PLAN`, started by spawn.py.

The plan names the library, "ours" or "torch" over Gloo, which has these processes for itself, and
the measurement: "times" of steps of all schedules in turns, or the "memory" of one schedule.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional

_WARM_UP = 3
_SMALL = {"width": 8, "hidden": 8, "rows": 2}
_MSE = functional.mse_loss
Step = Callable[[], object]


class SwiGlu(nn.Module):
    """Implements the MLP of a Llama layer, with its norm and the residual."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        gated: torch.Tensor = self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return x + gated


class Model:
    """Holds the same layers on all ranks, in stages that are assigned to ranks."""

    def __init__(self, plan: dict[str, Any]) -> None:
        torch.manual_seed(0)
        width, self.count = plan["width"], plan["microbatches"]
        self.layers = [SwiGlu(width, plan["hidden"]) for _ in range(plan["depth"])]
        self.data = torch.randn(self.count, plan["rows"], width)
        self.target = torch.randn(self.count, plan["rows"], width)

    def stages(self, count: int) -> list[nn.Sequential]:
        each = len(self.layers) // count
        return [nn.Sequential(*self.layers[n * each : (n + 1) * each]) for n in range(count)]

    def grads(self) -> dict[str, list[float]]:
        """Return the sum and the norm of each parameter's gradient, if it has one."""
        return {
            f"{number}.{name}": [float(p.grad.double().sum()), float(p.grad.double().norm())]
            for number, layer in enumerate(self.layers)
            for name, p in layer.named_parameters()
            if p.grad is not None
        }

    def zero(self) -> None:
        for layer in self.layers:
            layer.zero_grad()


def ours(model: Model, schedule: str) -> Step:
    import torsh_runtime as tr

    name = {"1f1b": "1f1b", "zb": "zb-h1", "zbv": "zbv"}[schedule]
    stages = model.stages(4 if schedule == "zbv" else 2)
    pipeline = tr.PipelineParallel(stages, model.count, schedule=name, loss_fn=_MSE)
    return lambda: pipeline.step(model.data, model.target)


def torchs(model: Model, schedule: str) -> Step:
    from torch.distributed.pipelining import PipelineStage, schedules

    rank = distributed.get_rank()
    parts = model.stages(4 if schedule == "zbv" else 2)
    own = [rank, 3 - rank] if schedule == "zbv" else [rank]
    cpu = torch.device("cpu")
    stages = [PipelineStage(parts[number], number, len(parts), cpu) for number in own]
    if schedule == "1f1b":
        made: Any = schedules.Schedule1F1B(stages[0], model.count, loss_fn=_MSE)
    elif schedule == "zb":
        made = schedules.ScheduleInterleavedZeroBubble([*stages], model.count, loss_fn=_MSE)
    else:
        made = schedules.ScheduleZBVZeroBubble([*stages], model.count, loss_fn=_MSE)
    given = (model.data,) if rank == 0 else ()
    named = {"target": model.target} if len(parts) - 1 in own else {}
    return lambda: made.step(*given, **named)


def times(plan: dict[str, Any], make: Callable[[Model, str], Step], meet: Step) -> dict[str, Any]:
    """Return the seconds of each step, and its gradients."""
    model = Model(plan)
    steps = {name: make(model, name) for name in plan["schedules"]}
    grads = {}
    for name, step in steps.items():
        step()
        grads[name] = model.grads()
        model.zero()
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_WARM_UP + plan["turns"]):
        for name, step in steps.items():
            model.zero()
            meet()
            began = time.perf_counter()
            step()
            found[name].append(time.perf_counter() - began)
    return {"times": {name: each[_WARM_UP:] for name, each in found.items()}, "grads": grads}


def memory(plan: dict[str, Any], make: Callable[[Model, str], Step], meet: Step) -> dict[str, Any]:
    """Return peaks of memory in bytes, above the process's use with libraries, model and batch.

    These are that of resident memory, in which messages are shared with the other rank, and that of
    tensors as reported by torch's profiler.
    """
    (schedule,) = plan["schedules"]
    small = make(Model({**plan, **_SMALL}), schedule)
    for _ in range(2):  # torch and its pipelining load much at their first use
        small()
    del small
    model = Model(plan)
    gc.collect()
    before, shared = _kib("VmRSS"), _kib("RssShmem")
    Path("/proc/self/clear_refs").write_text("5")
    step = make(model, schedule)
    for _ in range(plan["turns"]):
        model.zero()
        meet()
        step()
    resident = _kib("VmHWM") - before - (_kib("RssShmem") - shared) / 2
    model.zero()
    meet()
    return {"resident": 1024 * resident, "tensors": _tensor_bytes(step)}


def _kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise OSError(f"the kernel tells no {field}")


def _tensor_bytes(step: Step) -> int:
    """Return the peak of torch's allocator in a step, in bytes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    held = peak = 0
    events = profile.profiler.kineto_results.events()
    changes = [(each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"]
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        peak = max(peak, held)
    return peak


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    measure = {"times": times, "memory": memory}[plan["what"]]
    if plan["library"] == "ours":
        import torsh_runtime as tr

        tr.init_process_group()
        rank = tr.get_rank()
        found = measure(plan, ours, tr.barrier)
        tr.destroy_process_group()
    else:
        distributed.init_process_group("gloo")
        rank = distributed.get_rank()
        found = measure(plan, torchs, distributed.barrier)
        distributed.destroy_process_group()
    Path(f"{plan['to']}.{rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
