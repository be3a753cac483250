"""Models trained in pipelines and in one process; each function one rank's part."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support.tensor_parallel import plain

import torsh_runtime as tr
from torsh_runtime import nn, optim

WIDTH, ROWS, MICROBATCHES, STEPS = 12, 24, 6, 3
SCHEDULES = ("gpipe", "1f1b", "1f1b+1", "interleaved", "zb-h1", "zbv", "auto")


class NnSkip(nn.Module):
    """A layer, and what came into it for later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=np.float64)

    def forward(self, x: Any) -> Any:
        return self.linear(x).tanh(), x


class NnJoin(nn.Module):
    """The end of a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=np.float64)

    def forward(self, x: Any, skipped: Any) -> Any:
        return self.linear(x) + skipped


class NnHead(nn.Module):
    """Scores by the embedding's own weight."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weight)


class NnModel(nn.Module):
    """An embedding, layers with a skip connection, and a head that is tied if wanted."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(9, WIDTH, dtype=np.float64)
        self.blocks = nn.Sequential(NnSkip(), NnJoin(), nn.LayerNorm(WIDTH, dtype=np.float64))
        head: Any = NnHead(self.tokens.weight)
        self.head = head if tied else nn.Linear(WIDTH, 9, bias=False, dtype=np.float64)

    def forward(self, x: Any) -> Any:
        x = self.tokens(x)
        return self.head(self.blocks[2](self.blocks[1](*self.blocks[0](x))))


def nn_model(tied: bool = False) -> Any:
    nn.manual_seed(3)
    return NnModel(tied)


def nn_loss(scores: Any, target: Any) -> Any:
    return nn.functional.cross_entropy(scores, target)


def torch_model(tied: bool = False) -> Any:
    """The same, with its values."""
    import torch

    class Skip(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return self.linear(x).tanh(), x

    class Join(Skip):
        def forward(self, x: Any, skipped: Any) -> Any:  # type: ignore[override]
            return self.linear(x) + skipped

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = torch.nn.Embedding(9, WIDTH)
            self.blocks = torch.nn.Sequential(Skip(), Join(), torch.nn.LayerNorm(WIDTH))
            self.head = torch.nn.Linear(WIDTH, 9, bias=False)
            if tied:
                self.head.weight = self.tokens.weight

        def forward(self, x: Any) -> Any:
            x = self.tokens(x)
            return self.head(self.blocks[2](self.blocks[1](*self.blocks[0](x))))

    torch.manual_seed(3)
    return Model().double()


def torch_loss(scores: Any, target: Any) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(scores, target)


def batch(step: int, rows: int = ROWS) -> tuple[Any, Any]:
    random = np.random.default_rng(step)
    return random.integers(9, size=rows), random.integers(9, size=rows)


def of(kind: str) -> tuple[Callable[..., Any], Any, Callable[[Any], Any]]:
    """A model's maker, its loss, and what makes tensors."""
    if kind == "nn":
        return nn_model, nn_loss, nn.from_numpy
    import torch

    return torch_model, torch_loss, torch.from_numpy


def optimizer_of(kind: str, model: Any) -> Any:
    if kind == "nn":
        return optim.AdamW(model.parameters(), lr=0.01)
    import torch

    return torch.optim.AdamW(model.parameters(), lr=0.01)


def values(model: Any) -> dict[str, Any]:
    return {name: plain(each).copy() for name, each in model.named_parameters()}


def alone(
    kind: str, tied: bool, rows: int = ROWS, parts: int = MICROBATCHES, clips: bool = True
) -> dict[str, Any]:
    """One process that accumulates the microbatches' gradients."""
    make, loss_fn, tensor = of(kind)
    model = make(tied)
    optimizer = optimizer_of(kind, model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for x, y in zip(*(np.array_split(each, parts) for each in batch(step, rows)), strict=True):
            (loss_fn(model(tensor(x)), tensor(y)) * (len(x) / rows)).backward()
        norm = tr.clip_grad_norm_(model, 0.5) if clips else 0.0
        optimizer.step()
    return {**values(model), "norm": norm}


CUTS = {2: ["blocks.1"], 3: ["blocks.0", "blocks.2"], 4: ["blocks.0", "blocks.1", "head"]}


def together(
    rank: int, kind: str, schedule: Any, stages: int, tied: bool = False, **options: Any
) -> dict[str, Any]:
    """A pipeline over all ranks, or over "pp" of a mesh with "dp"."""
    make, loss_fn, tensor = of(kind)
    rows, share = options.pop("rows", ROWS), slice(None)
    mesh, clips = None, options.pop("clips", True)
    alike = tr.init_device_mesh({"pp": tr.get_world_size()})
    if options.pop("dp", False):
        mesh = tr.init_device_mesh({"dp": 2, "pp": -1})
        group = mesh.get_group("dp")
        options["wrap"] = lambda each: tr.DistributedDataParallel(each, process_group=group)
        half = rows // 2
        share = slice(half * group.rank, half * (group.rank + 1))
    pipeline = tr.PipelineParallel(
        make(tied),
        options.pop("parts", MICROBATCHES),
        cuts=CUTS[stages],
        schedule=schedule,
        loss_fn=loss_fn,
        mesh=mesh,
        **options,
    )
    optimizer = optimizer_of(kind, pipeline.module)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = (tensor(each[share]) for each in batch(step, rows))
        losses.append(pipeline.step(x, y))
        norm = tr.clip_grad_norm_(pipeline.module, 0.5, mesh or alike) if clips else 0.0
        optimizer.step()
    return {**values(pipeline.module), "norm": norm, "losses": losses, "peaks": pipeline.peaks}


def joined(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in results:
        found |= each
    return found


def odd(rank: int, kind: str) -> dict[str, Any]:
    """Uneven microbatches, weighted; microbatches of several shapes; batches of other sizes."""
    make, loss_fn, tensor = of(kind)
    options = {"cuts": CUTS[2], "loss_fn": loss_fn, "checkpoint": rank >= 0}
    pipeline = tr.PipelineParallel(make(), 4, **options)
    model = make()
    found: dict[str, Any] = {}
    for number, rows in enumerate((10, 7, 10)):
        x, y = map(tensor, batch(number, rows))
        pipeline.module.zero_grad()
        model.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        mean = pipeline.step(x if rank == 0 else None, y if rank else None)
        found[f"loss {number}"] = mean, loss.item()
        for name, parameter in pipeline.module.named_parameters():
            whole = dict(model.named_parameters())[name].grad
            found[f"{name} {number}"] = np.array(parameter.grad.data), np.array(whole.data)
    parts = [batch(number, rows) for number, rows in enumerate((3, 5, 2, 4))]
    xs, ys = ([tensor(each) for each in side] for side in zip(*parts, strict=True))
    model = make_like(pipeline, kind, rank)
    losses = [loss_fn(model(x), y).item() for x, y in zip(xs, ys, strict=True)]
    expected = float(np.average(losses, weights=[3, 5, 2, 4]))
    found["varying"] = pipeline.step(xs, ys), expected
    found["evaluated"] = pipeline.evaluate(tensor(parts[1][0]), tensor(parts[1][1])), losses[1]
    outputs = pipeline.forward(tensor(parts[2][0]))
    whole = model(tensor(parts[2][0]))
    if outputs is not None:
        found["outputs"] = np.array(outputs.data), np.array(whole.data)
    doubled = tr.PipelineParallel(make(), 4, tokens=lambda y: int((y.data > 4).sum()), **options)
    y = parts[1][1]
    counts = [(part > 4).sum() for part in np.array_split(y, 4)]
    pieces = zip(*(np.array_split(each, 4) for each in parts[1]), strict=True)
    means = [loss_fn(make()(tensor(a)), tensor(b)).item() for a, b in pieces]
    weighted = float(np.average(means, weights=counts))
    found["tokens"] = doubled.evaluate(tensor(parts[1][0]), tensor(y)), weighted
    return found


def kept(rank: int, kind: str) -> int:
    """How many inputs of the last stage are still there when a step has ended."""
    module = sys.modules["torch"].nn if kind == "torch" else nn
    seen: list[Any] = []

    class Witness(module.Linear):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            seen.append(weakref.ref(x))
            return super().forward(x)

    stages = [module.Linear(4, 4), Witness(4, 4)]
    pipeline = tr.PipelineParallel(stages, 3, loss_fn=module.functional.mse_loss)
    rows = np.ones((6, 4), np.float32)
    batch = sys.modules["torch"].from_numpy(rows) if kind == "torch" else nn.Tensor(rows)
    pipeline.step(batch, batch)
    assert len(seen) == 3 * rank
    return sum(each() is not None for each in seen)


def make_like(pipeline: Any, kind: str, rank: int) -> Any:
    """The unsplit model, which has not been trained."""
    del pipeline, rank
    return of(kind)[0]()


def refusals(rank: int) -> list[str]:
    """What each wrong use says."""
    x, y = map(nn.from_numpy, batch(0))
    make: Callable[..., Any] = tr.PipelineParallel
    good: dict[str, Any] = {"cuts": CUTS[2], "loss_fn": nn_loss}
    pipeline = make(nn_model(), 6, **good)
    wrong: list[Callable[[], object]] = [
        lambda: make(nn_model(), 6, cuts=["blocks.7"]),
        lambda: make(nn_model(), 6, cuts=["head", "blocks.1"]),
        lambda: make(nn_model(), 6 + rank, **good),
        lambda: make(nn_model(), 6, schedule="zbv", **good),
        lambda: make(nn_model(), 6, schedule="2f2b", **good),
        lambda: make(nn_model(), 6, (0, 0), **good),
        lambda: make(nn_model(), 6),
        lambda: make(nn_model(), 6, cuts=2),
        lambda: pipeline.step(x[: 5 + rank], y),
        lambda: pipeline.step(x[: 12 + rank], y),
        lambda: pipeline.step(None, y),
        lambda: make(nn_model(), 6, cuts=CUTS[2]).step(x, y),
    ]
    said = []
    for call in wrong:
        try:
            call()
            said.append("")
        except tr.ConfigError as error:
            said.append(str(error))
    return said


def measured(rank: int) -> dict[str, Any]:
    """A pipeline that is cut where measuring says and whose table is chosen."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(6)))
    x = nn.Tensor(np.ones((64, 256), np.float32))
    pipeline = tr.PipelineParallel(
        model, 4, cuts=2, example=x[:16], schedule="auto", loss_fn=lambda a, b: (a - b).mean()
    )
    pipeline.step(x, x)
    own = [name for name, _ in pipeline.module.named_parameters()]
    timeline = pipeline.timeline()
    return {
        "own": own,
        "costs": pipeline.costs,
        "table": pipeline.table.name,
        "spans": [len(row) for row in timeline.spans],
        "simulated": pipeline.simulation().peaks,
    }


class Failing(nn.Module):
    """Raises in the third forward pass, or in the second backward pass."""

    def __init__(self, backward: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 9, dtype=np.float64)
        self.backward, self.calls = backward, 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.calls == 3 and not self.backward:
            raise ArithmeticError("no more")
        y = self.linear(x)
        if self.calls == 2 and self.backward:
            y.register_hook(self._refuse)
        return y

    def _refuse(self, gradient: Any) -> None:
        raise ArithmeticError("no way back")


def failing(rank: int, backward: bool) -> Any:
    """What a rank's step raises."""
    stages = [
        nn.Linear(WIDTH, WIDTH, dtype=np.float64),
        nn.Linear(WIDTH, WIDTH, dtype=np.float64),
        Failing(backward),
    ]
    pipeline = tr.PipelineParallel(stages, 6, loss_fn=nn_loss)
    x = nn.Tensor(np.ones((12, WIDTH)))
    try:
        pipeline.step(x, nn.from_numpy(np.zeros(12, np.int64)))
    except tr.PipelineError as error:
        return error.rank, error.stage, error.microbatch, str(error)
    return None


def sharded(rank: int, kind: str, schedule: str) -> tuple[list[float], list[float]]:
    """Losses of a pipeline whose stages are sharded, and of one process."""
    make, loss_fn, tensor = of(kind)
    mesh = tr.init_device_mesh({"dp": 2, "pp": -1})
    group = mesh.get_group("dp")
    pipeline = tr.PipelineParallel(
        make(),
        MICROBATCHES,
        cuts=CUTS[2],
        schedule=schedule,
        loss_fn=loss_fn,
        mesh=mesh,
        wrap=lambda each: tr.FullyShardedDataParallel(each, process_group=group, min_num_params=0),
    )
    (stage,) = pipeline.stages.values()
    model = make()
    pairs = [(each, optimizer_of(kind, each)) for each in (stage, model)]
    half, losses = ROWS // 2, ([], [])
    share = slice(half * group.rank, half * (group.rank + 1))
    for step in range(STEPS + 1):
        for module, _ in pairs:
            module.zero_grad()
        x, y = map(tensor, batch(step))
        loss = loss_fn(model(x), y)
        loss.backward()
        losses[0].append(pipeline.step(x[share], y[share]))
        losses[1].append(loss.item())
        for module, optimizer in pairs:
            tr.clip_grad_norm_(module, 0.5, mesh if module is stage else None)
            optimizer.step()
    return losses
