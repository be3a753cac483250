"""Norms of gradients of models that are spread; each function one rank's part, of four."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
from support.grad_scaling import CASES, back_of, batches
from support.mistakes import Bench
from support.planted import DDP, FSDP, gpt, piped
from support.tensor_parallel import kit

import torsh_runtime as tr
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.parallel.pipeline import PipelineParallel
from torsh_runtime.parallel.verification.placing import Place, share_of


def _trained(spread: Any, build: Any, sizes: dict[str, int], over: tuple[str, ...]) -> Any:
    """A model with gradients, in a mesh, and the norm that one process has."""
    tools, mesh = kit("nn"), tr.init_device_mesh(sizes)
    mesh = mesh.view({"edp": -1, "ep": 2}, over=over) if over else mesh
    whole = build(tools)
    made = spread(Bench("nn", copy.deepcopy(whole), mesh))
    scaler, place = tr.ShardedGradScaler(enabled=False), Place(mesh, ("dp",), "cp", None)
    batch, target = next(batches(tools))
    share = share_of(batch, place)
    back_of(tools, whole, scaler, batch, target)()
    back_of(tools, made, scaler, tuple(map(share.of, batch)), share.of(target))()
    module = made.module if isinstance(made, PipelineParallel) else made
    squares = [float((each.grad.data**2).sum()) for each in whole.parameters()]
    return module, mesh, math.sqrt(sum(squares))


def norms(name: str, rank: int) -> tuple[float, float, list[int]]:
    """That of a case, one process's, and among how many ranks there was an exchange each time."""
    case, own = CASES[name], ProcessGroup.all_gather_numbers
    module, mesh, expected = _trained(case.spread, case.build, case.sizes, case.over)
    tr.clip_grad_norm_(module, math.inf, mesh)  # which makes the groups
    sizes = []

    def counted(group: ProcessGroup, numbers: Any) -> Any:
        sizes.append(group.world_size)
        return own(group, numbers)

    ProcessGroup.all_gather_numbers = counted  # type: ignore[method-assign]
    try:
        found = tr.clip_grad_norm_(module, math.inf, mesh)
    finally:
        ProcessGroup.all_gather_numbers = own  # type: ignore[method-assign]
    return found, expected, sizes


def of_unlike_stages(rank: int) -> list[tuple[float, float]]:
    """Where one stage is sharded and the other one is not, with the mesh, with a part of it, and
    without one."""

    def spread(bench: Bench) -> Any:
        wrapper = FSDP if bench.mesh.coordinate["pp"] else DDP
        return piped(wrapper=wrapper)(bench)

    module, mesh, expected = _trained(spread, gpt, {"pp": 2, "dp": 2}, ())
    given = (mesh, mesh["dp"], None)
    return [(tr.clip_grad_norm_(module, math.inf, each), expected) for each in given]


def apart(by: float, rank: int) -> float:
    """Where a gradient of what all ranks have is another one on rank 3, times 1 + by."""
    case = CASES["parts"]
    module, mesh, _ = _trained(case.spread, case.build, case.sizes, ())
    if mesh.get_rank() == 3:
        parameter = dict(module.named_parameters())["module.enter.places.weight"]
        values = parameter.grad.data
        values *= np.float64(1.0 + by)
    return tr.clip_grad_norm_(module, math.inf, mesh)


def in_a_container(rank: int) -> list[tuple[float, float]]:
    """That of stages of which two have one weight, by themselves and in other modules, and that of
    one process."""
    first, last = tr.nn.Linear(6, 6, bias=False), tr.nn.Linear(6, 6, bias=False)
    last.weight = first.weight
    draw = np.random.default_rng(0)
    batch, target = (tr.nn.from_numpy(draw.standard_normal((8, 6))) for _ in range(2))
    mesh = tr.init_device_mesh({"pp": 2, "dp": 2})
    weight = np.array(first.weight.data, np.float64)
    loss = tr.nn.functional.mse_loss
    first.weight.data = last.weight.data = weight
    loss(last(first(batch)), target).backward()
    expected = math.sqrt(float((first.weight.grad.data**2).sum()))
    first.weight.grad = None
    wrap = partial(tr.DistributedDataParallel, process_group=mesh["dp"])
    options: dict[str, Any] = {"mesh": mesh, "wrap": wrap, "loss_fn": loss}
    pipeline = tr.PipelineParallel([first, last], 2, **options)
    pipeline.step(batch, target)
    containers = pipeline.module, tr.nn.Sequential(tr.nn.Sequential(pipeline.module))
    return [(tr.clip_grad_norm_(each, math.inf, mesh), expected) for each in containers]
