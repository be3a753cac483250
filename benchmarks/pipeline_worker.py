"""Runs one rank of pipeline.py: `pipeline_worker.py PLAN`, started by spawn.py."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.pipelining import PipelineStage, schedules

import torsh_runtime as tr
from benchmarks.ddp_network_worker import limit
from torsh_runtime.parallel.pipeline.autograd import autograd_of

_WARM_UP = 3
_MSE = nn.functional.mse_loss
TORCH = {
    "torch 1f1b": schedules.Schedule1F1B,
    "torch zb": schedules.ScheduleInterleavedZeroBubble,
}


def half(width: int, depth: int, seed: int) -> nn.Sequential:
    """Return a stage: Linear layers with GELU between them."""
    torch.manual_seed(seed)
    layers = [nn.Linear(width, width) for _ in range(depth)]
    return nn.Sequential(*(module for layer in layers for module in (layer, nn.GELU())))


class Measuring:
    """Runs one rank's part of a measurement."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.rank = plan, tr.get_rank()
        self.count, self.rows, width = plan["microbatches"], plan["rows"], plan["width"]
        self.data = torch.randn(self.count * self.rows, width)
        self.stage = half(width, plan["depth"], self.rank)

    def pipeline(self, schedule: str) -> Any:
        """Return torsh's pipeline."""
        stages = [half(self.plan["width"], self.plan["depth"], seed) for seed in range(2)]
        return tr.PipelineParallel(stages, self.count, schedule=schedule, loss_fn=_MSE)

    def torchs(self, kind: type[Any]) -> Callable[[], object]:
        """Return a step of torch's pipelining over Gloo."""
        stage = PipelineStage(
            half(self.plan["width"], self.plan["depth"], self.rank),
            self.rank,
            2,
            torch.device("cpu"),
        )
        given: Any = stage if kind is schedules.Schedule1F1B else [stage]
        schedule = kind(given, self.count, loss_fn=_MSE)
        if self.rank == 0:
            return lambda: schedule.step(self.data)
        return lambda: schedule.step(target=self.data)

    def work(self) -> None:
        """Do this rank's passes one after the other, as if their inputs were always available."""
        for part in self.data.split(self.rows):
            x = part.detach().requires_grad_(self.rank > 0)
            y = self.stage(x)
            if self.rank:
                _MSE(y, part).backward()
            else:
                y.backward(part)

    def steps(self) -> dict[str, Any]:
        """Return the seconds of steps, in turns, since the speed of machines changes."""
        place = f"file://{self.plan['to']}.meeting"
        distributed.init_process_group("gloo", init_method=place, rank=self.rank, world_size=2)
        ours = {name: self.pipeline(name) for name in ("1f1b", "zb-h1")}
        calls: dict[str, Callable[[], object]] = {"work": self.work}
        for name, pipeline in ours.items():
            calls[name] = lambda pipeline=pipeline: pipeline.step(self.data, self.data)
        calls |= {name: self.torchs(kind) for name, kind in TORCH.items()}
        makespans: dict[str, list[float]] = {name: [] for name in ours}

        def simulate() -> None:
            for name, pipeline in ours.items():
                pipeline.measure(self.data, self.data)
                makespans[name].append(pipeline.simulation().makespan)

        times = self._in_turns(calls, simulate)
        simulations = {name: found[_WARM_UP:] for name, found in makespans.items()}
        found: dict[str, Any] = {"times": times, "simulated": simulations, "alive": {}}
        for name, pipeline in ours.items():
            simulated = pipeline.simulation()
            costs = pipeline.costs
            held = [peak / costs.activation[rank] for rank, peak in enumerate(simulated.peaks)]
            found["alive"][name] = held[self.rank], pipeline.peaks[self.rank]
        distributed.destroy_process_group()
        return found

    def split(self) -> dict[str, Any]:
        """Compare a backward pass in two parts with a whole one, without communication."""
        autograd = autograd_of(self.stage)
        part = self.data[: self.rows]

        def whole() -> None:
            x = part.detach().requires_grad_()
            autograd.backward([self.stage(x)], [part])

        def parts() -> None:
            x = part.detach().requires_grad_()
            with autograd.splitting():
                y = self.stage(x)
            autograd.backward_inputs([y], [part], [x])()

        def repeated(call: Callable[[], None]) -> Callable[[], None]:
            return lambda: [call() for _ in range(self.count)] and None

        times = self._in_turns({"whole": repeated(whole), "parts": repeated(parts)})
        return {"times": times}

    def link(self) -> dict[str, Any]:
        """Measure steps over the full cable, and with transfers as long as a forward pass."""
        free = self._chosen()
        forward = max(free["forward"])
        nbytes = 4 * self.rows * self.plan["width"]
        limit(self.plan["interface"], 8 * nbytes / forward)
        slow = self._chosen()
        return {"free": free, "slow": slow, "bits": 8 * nbytes / forward}

    def _chosen(self) -> dict[str, Any]:
        pipelines = {name: self.pipeline(name) for name in ("1f1b", "auto")}
        calls = {
            name: lambda pipeline=pipeline: pipeline.step(self.data, self.data)
            for name, pipeline in pipelines.items()
        }
        times = self._in_turns(calls)
        best = pipelines["auto"]
        costs = best.costs
        return {
            "times": times,
            "table": best.table.name,
            "forward": costs.forward,
            "transfer": costs.transfer,
            "simulated": best.simulation().makespan,
        }

    def _in_turns(
        self, calls: dict[str, Callable[[], object]], after: Callable[[], None] | None = None
    ) -> dict[str, list[float]]:
        """Return the seconds of each turn, until the slower rank has ended.

        after: called after each turn.
        """
        rows = []
        for _ in range(_WARM_UP + self.plan["turns"]):
            row = []
            for call in calls.values():
                tr.barrier()
                began = time.perf_counter()
                call()
                row.append(time.perf_counter() - began)
            rows.append(row)
            if after is not None:
                after()
        times = np.array(rows[_WARM_UP:])
        tr.all_reduce(times, tr.ReduceOp.MAX)
        return dict(zip(calls, times.T.tolist(), strict=True))


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    tr.init_process_group()
    found = getattr(Measuring(plan), plan["what"])()
    Path(f"{plan['to']}.{tr.get_rank()}").write_text(json.dumps(found))
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
