"""Defines the columns of benchmarks/families.py: the ways in which models are spread."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

import torsh_runtime as tr
from benchmarks.family_models import FAMILIES, Batch, Family, following, part_of
from benchmarks.family_replicas import adapted, checkpointed, replicated, sharded
from benchmarks.family_training import (
    NORM,
    RATE,
    SENSELESS,
    STEPS,
    TOLERANCE,
    Trained,
    built,
    compared,
    in_float64,
    parameters_of,
    trained,
    whole,
)

RIGHT, REFUSED, WRONG = "right", "refused", "WRONG"
NOT_TRIED = "not tried"
TOKENS, MICROBATCHES = 8, 2
_ROUNDED_IN_GRAPHS = {"deepseek-v2": 1e-7}
"""Tolerances of families that compute rotations in float32 in graphs, also in one process."""
_OF_LOSSES = ("labels", "shift_labels", "num_items_in_batch")


def tensor_parallel(name: str, mesh: Any, sequence: bool = False) -> str:
    """Compare parallelize(model, mesh, "auto"), with parts of sequences if `sequence`."""
    family = FAMILIES[name]
    model = built(family)
    plan: Any = tr.plan_of(model, mesh.size(), sequence=True) if sequence else "auto"
    tr.parallelize(model, mesh, plan)
    found = trained(model, family, lambda: tr.clip_grad_norm_(model, NORM, mesh))
    return compared(found, whole(name), tr.layouts_of(model), mesh)


def compiled(name: str, mesh: Any) -> str:
    """Compare a cut model's forward pass in torch.compile, without its optimizations."""
    family = FAMILIES[name]
    model = tr.parallelize(built(family), mesh, "auto")
    torch._dynamo.reset()
    model.compile(backend="aot_eager")
    found = trained(model, family, lambda: tr.clip_grad_norm_(model, NORM, mesh))
    tolerance = _ROUNDED_IN_GRAPHS.get(name, TOLERANCE)
    return compared(found, whole(name), tr.layouts_of(model), mesh, tolerance)


@in_float64()
def generated(model: Any, batch: Batch, **options: Any) -> Tensor:
    """Return the generated tokens."""
    torch.manual_seed(7)
    found: Tensor = model.generate(**batch, **options, max_new_tokens=TOKENS, min_new_tokens=6)
    return found


def generating(name: str, mesh: Any) -> str:
    """Compare tokens of a cut model with a cache: greedy, drawn and by beams."""
    family = FAMILIES[name]
    if not family.generates:
        return SENSELESS
    plain, model = family.built().eval(), family.built().eval()
    tr.parallelize(model, mesh, "auto")
    batch = {key: each[:2] for key, each in family.batch(0).items() if key != "labels"}
    ways: dict[str, dict[str, Any]] = {
        "greedy": {},
        "drawn": {"do_sample": True, "top_k": 20},
        "beams": {"num_beams": 3},
    }
    for way, options in ways.items():
        if not torch.equal(*(generated(each, batch, **options) for each in (plain, model))):
            return f"other tokens ({way})"
    return ""


def pipelined(name: str, mesh: Any, schedule: str, stages: int) -> str:
    """Compare PipelineParallel(model, …) with the model's own loss."""
    family = FAMILIES[name]
    pipeline = tr.PipelineParallel(
        built(family, is_deep=True), MICROBATCHES, mesh=mesh, cuts=stages, schedule=schedule
    )
    found = _stepped(pipeline, family.batch, mesh)
    return compared(found, whole(name, is_deep=True), {}, mesh)


def spread(name: str, mesh: Any) -> str:
    """Compare two stages of two parts of layers, each with replicas."""
    family, group = FAMILIES[name], mesh.get_group("dp")
    model = tr.parallelize(built(family, is_deep=True), mesh, "auto")
    pipeline = tr.PipelineParallel(
        model,
        MICROBATCHES,
        mesh=mesh,
        cuts=2,
        wrap=lambda stage: tr.DistributedDataParallel(stage, process_group=group),
    )
    place, count = mesh.coordinate["dp"], group.world_size

    def own_batch(step: int) -> Batch:
        return part_of(family.batch(step), place, count)

    found = _stepped(pipeline, own_batch, mesh)
    return compared(found, whole(name, is_deep=True), tr.layouts_of(pipeline.module), mesh)


@in_float64()
def _stepped(pipeline: Any, batch: Callable[[int], Batch], mesh: Any) -> Trained:
    optimizer = torch.optim.AdamW(pipeline.module.parameters(), lr=RATE)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append(pipeline.step(batch(step)))
        norms.append(float(tr.clip_grad_norm_(pipeline.module, NORM, mesh)))
        optimizer.step()
    return Trained(losses, norms, parameters_of(pipeline.module))


def context_parallel(name: str, mesh: Any) -> str:
    """Compare context_model() and context_batch()."""
    model = built(FAMILIES[name])
    tr.context_model(model, mesh)
    replica: Any = tr.DistributedDataParallel(model, process_group=mesh.get_group())
    return compared(_of_parts(replica, FAMILIES[name], mesh), whole(name), {}, mesh)


@in_float64()
def _of_parts(replica: Any, family: Family, mesh: Any) -> Trained:
    optimizer = torch.optim.AdamW(replica.parameters(), lr=RATE)
    losses, norms = [], []
    for step in range(STEPS):
        batch = tr.context_batch(family.batch(step), mesh, family.loss is following)
        given = {key: each for key, each in batch.items() if key not in _OF_LOSSES}
        loss = tr.context_loss(replica(**given).logits, batch["shift_labels"], mesh)
        optimizer.zero_grad()
        loss.backward()
        norms.append(float(tr.clip_grad_norm_(replica, NORM)))
        optimizer.step()
        mean = loss.detach().clone()
        tr.all_reduce(mean, tr.ReduceOp.AVG)
        losses.append(mean.item())
    return Trained(losses, norms, parameters_of(replica.module))


def expert_parallel(name: str, mesh: Any) -> str:
    """Compare whole experts on ranks with batches of their own, including the balancing loss."""
    family, has_balance = FAMILIES[name], {"output_router_logits": True}
    if not any("Experts" in type(each).__name__ for each in built(family).modules()):
        return SENSELESS
    if not hasattr(built(family).config, "output_router_logits"):
        has_balance = {}
    balanced = replace(
        family, loss=partial(_with_balance, family.loss), options={**family.options, **has_balance}
    )
    model, single = built(balanced), built(balanced)
    reference = trained(
        single, balanced, partial(torch.nn.utils.clip_grad_norm_, [*single.parameters()], NORM)
    )
    tr.parallelize(model, mesh, "auto")
    replica: Any = tr.DistributedDataParallel(model, process_group=mesh["dp"])
    place, count = mesh.coordinate["dp"], mesh.size("dp")

    def own_batch(step: int) -> Batch:
        return {key: each.chunk(count)[place] for key, each in family.batch(step).items()}

    found = trained(
        replica, replace(balanced, batch=own_batch), lambda: tr.clip_grad_norm_(replica, NORM, mesh)
    )
    losses = torch.tensor(found.losses, dtype=torch.float64)
    tr.all_reduce(losses, tr.ReduceOp.AVG)
    own = {key.removeprefix("module."): each for key, each in found.parameters.items()}
    return compared(
        Trained(losses.tolist(), found.norms, own), reference, tr.layouts_of(model), mesh
    )


def _with_balance(loss: Callable[[Any, Batch], Tensor], found: Any, batch: Batch) -> Tensor:
    """Return the loss, plus the balancing loss of experts if the model has one."""
    balance = getattr(found, "aux_loss", None)
    return loss(found, batch) + (0.1 * balance if isinstance(balance, Tensor) else 0.0)


def saved(name: str, mesh: Any) -> str:
    """Compare a trained model's save_pretrained(), in float32, read by one process and by parts."""
    family, model = FAMILIES[name], built(FAMILIES[name]).float()
    kind = type(model)
    tr.parallelize(model, mesh, "auto")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    _loss_in_float32(model, family, 0).backward()
    optimizer.step()
    folder = [tempfile.mkdtemp() if tr.get_rank() == 0 else ""]
    tr.broadcast_object_list(folder, 0)
    try:
        model.save_pretrained(folder[0], max_shard_size="50KB")
        parts = tr.from_pretrained(kind, folder[0], mesh, experts_implementation="eager")
        found = _same_state(tr.whole_state_dict(model), kind.from_pretrained(folder[0]))
    finally:
        tr.barrier()
        shutil.rmtree(folder[0], ignore_errors=True)
    with torch.no_grad():
        losses = [_loss_in_float32(each.eval(), family, 1) for each in (model, parts)]
    return found or ("" if torch.equal(*losses) else "another loss of what is loaded by parts")


def _loss_in_float32(model: Any, family: Family, step: int) -> Tensor:
    given = family.batch(step).items()
    batch = {key: each.float() if each.is_floating_point() else each for key, each in given}
    return family.loss(model(**batch), batch)


def _same_state(expected: Mapping[str, Tensor], model: Any) -> str:
    """Return how a model's state differs, or "". `expected` is empty on ranks without a state."""
    own = model.state_dict()
    for name, each in expected.items():
        if name not in own or not torch.equal(own[name], each) or own[name].dtype != each.dtype:
            return f"{name} is not what was saved"
    return "other names" if expected and expected.keys() != own.keys() else ""


@dataclass(frozen=True, slots=True)
class Column:
    """Describes one way to spread models."""

    run: Callable[[str, Any], str] | None
    """Function of family and mesh that returns what is wrong; "" for nothing, SENSELESS if it makes
    no sense. None: not tried.
    """
    axes: Mapping[str, int]
    """Axes of the mesh."""
    view: Mapping[str, int] = field(default_factory=dict)
    """Further axes that divide the ranks along "dp"."""

    def mesh(self) -> Any:
        """Create the mesh."""
        made = tr.init_device_mesh(dict(self.axes))
        return made.view(self.view, over=("dp",)) if self.view else made

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return prod(self.axes.values())


COLUMNS: Mapping[str, Column] = {
    "DDP": Column(replicated, {"dp": 2}),
    "FSDP": Column(sharded, {"dp": 2}),
    "TP 2": Column(tensor_parallel, {"tp": 2}),
    "TP 4": Column(tensor_parallel, {"tp": 4}),
    "TP + SP 2": Column(partial(tensor_parallel, sequence=True), {"tp": 2}),
    "PP 1f1b": Column(partial(pipelined, schedule="1f1b", stages=2), {"pp": 2}),
    "PP zbv": Column(partial(pipelined, schedule="zbv", stages=4), {"pp": 2}),
    "CP": Column(context_parallel, {"cp": 2}),
    "EP": Column(expert_parallel, {"dp": 2}, {"edp": 1, "ep": 2}),
    "TP × PP × DP": Column(spread, {"pp": 2, "dp": 2, "tp": 2}),
    "compile": Column(compiled, {"tp": 2}),
    "checkpointing": Column(checkpointed, {"tp": 2}),
    "LoRA": Column(adapted, {"tp": 2}),
    "save_pretrained": Column(saved, {"tp": 2}),
    "generate": Column(generating, {"tp": 2}),
}
"""The columns by title."""
