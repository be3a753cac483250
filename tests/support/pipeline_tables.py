"""Tables at random, and what runs them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

import torsh_runtime as tr
from torsh_runtime import nn
from torsh_runtime.parallel.pipeline.simulation import dependency
from torsh_runtime.parallel.pipeline.table import Kind, Step, Table


def random_table(seed: int, ranks: int | None = None) -> Table:
    """Steps in any order in which each can be taken."""
    source = random.Random(seed)
    ranks, microbatches = ranks or source.randint(1, 4), source.randint(1, 5)
    stages = ranks * source.randint(1, 2)
    placement = [*range(ranks), *(source.randrange(ranks) for _ in range(stages - ranks))]
    splits = [source.random() < 0.5 for _ in range(stages * microbatches)]
    pending = []
    for stage in range(stages):
        for microbatch in range(microbatches):
            split = splits[stage * microbatches + microbatch]
            kinds = (Kind.INPUT, Kind.WEIGHT) if split else (Kind.BACKWARD,)
            pending += [Step(stage, kind, microbatch) for kind in (Kind.FORWARD, *kinds)]
    rows: list[list[Step]] = [[] for _ in range(ranks)]
    done: set[Step] = set()
    while pending:
        step = source.choice([s for s in pending if dependency(s, stages) in {None, *done}])
        pending.remove(step)
        done |= {step, replace_kind(step)}
        rows[placement[step.stage]].append(step)
    return Table(tuple(map(tuple, rows)), f"random {seed}")


def replace_kind(step: Step) -> Step:
    return step._replace(kind=Kind.BACKWARD) if step.kind is Kind.INPUT else step


def run(rank: int, seeds: range) -> list[tuple[str, Any, Any]]:
    """Losses and gradients of random tables, and of one process."""
    found = []
    for seed in seeds:
        table = random_table(seed, tr.get_world_size())
        nn.manual_seed(seed)
        stages = [nn.Linear(5, 5, dtype=np.float64) for _ in range(table.num_stages)]
        x = nn.Tensor(np.random.default_rng(seed).standard_normal((table.num_microbatches * 2, 5)))
        whole = nn.Sequential(*stages)
        loss = nn.functional.mse_loss(whole(x), x)
        loss.backward()
        expected = [np.array(p.grad.data) for p in whole.parameters()]
        whole.zero_grad()
        pipeline = tr.PipelineParallel(
            stages, table.num_microbatches, schedule=table, loss_fn=nn.functional.mse_loss
        )
        found.append((table.name, pipeline.step(x, x), loss.item()))
        pairs = zip(whole.parameters(), expected, strict=True)
        found += [(table.name, p.grad.data, e) for p, e in pairs if p.grad is not None]
    return found
