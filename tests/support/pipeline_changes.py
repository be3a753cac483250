"""What changes while a pipeline is there: what is trained, and what stages keep; each function one
rank's part.
"""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
from support.pipeline_training import CUTS, MICROBATCHES, batch, of, optimizer_of

import torsh_runtime as tr
from torsh_runtime import nn

WIDTH = 1 << 15
"""Of which a message of several rows waits for its receiver."""
Pairs = dict[str, tuple[Any, Any]]


def thawed(rank: int, kind: str, schedule: str, begins_trained: bool) -> Pairs:
    """Losses and parameters where a parameter that two stages have is trained in some steps only:
    decay of weights changes what has a gradient, be it zero."""
    make, loss_fn, tensor = of(kind)
    model, split = make(True), make(True)

    def train(parameters: dict[str, Any], is_trained: bool) -> None:
        for name in parameters.keys() & {"tokens.weight", "head.weight"}:
            parameters[name].requires_grad = is_trained

    train(dict(split.named_parameters()), begins_trained)
    options: dict[str, Any] = {"cuts": CUTS[2], "loss_fn": loss_fn, "schedule": schedule}
    pipeline = tr.PipelineParallel(split, MICROBATCHES, **options)
    own, whole = dict(pipeline.module.named_parameters()), dict(model.named_parameters())
    optimizers = [optimizer_of(kind, each) for each in (pipeline.module, model)]
    pairs: Pairs = {}
    for number, is_trained in enumerate((begins_trained, not begins_trained, begins_trained)):
        for optimizer, parameters in zip(optimizers, (own, whole), strict=True):
            optimizer.zero_grad()
            train(parameters, is_trained)
        x, y = map(tensor, batch(number))
        loss = loss_fn(model(x), y)
        loss.backward()
        pairs[f"loss {number}"] = pipeline.step(x, y), loss.item()
        for optimizer in optimizers:
            optimizer.step()
        for name, each in own.items():
            pairs[f"{name} {number}"] = np.array(each.data), np.array(whole[name].data)
    return pairs


def apart(rank: int) -> str:
    """What is said where one rank alone trains what two stages have."""
    make, loss_fn, tensor = of("nn")
    pipeline = tr.PipelineParallel(make(True), MICROBATCHES, cuts=CUTS[2], loss_fn=loss_fn)
    dict(pipeline.module.named_parameters())["tokens.weight"].requires_grad = rank == 0
    try:
        pipeline.step(*map(tensor, batch(0)))
    except tr.ConfigError as error:
        return str(error)
    return ""


def counting(kind: str) -> tuple[Any, Any]:
    """A layer that gives a buffer as well, which each call changes, and one that uses it."""
    found = importlib.import_module("torch.nn") if kind == "torch" else nn
    ones = of(kind)[2](np.ones(WIDTH))

    class Counting(found.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", ones * 0)

        def forward(self, x: Any) -> Any:
            self.count.data += ones.data
            return x * 2.0, self.count

    class Using(found.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = found.Parameter(ones * 3)

        def forward(self, x: Any, count: Any) -> Any:
            return x * count * self.weight

    return Counting(), Using()


def counted(rank: int, kind: str, schedule: str) -> Pairs:
    """Losses and outputs where a stage gives a buffer of its own, for as many microbatches as wait
    for another one; "zbv" has the next stage on the same rank."""
    tensor = of(kind)[2]
    make = importlib.import_module("torch.nn") if kind == "torch" else nn
    counter, user = counting(kind)
    around = [make.Sequential(), make.Sequential()] if schedule == "zbv" else []
    stages = [*around[:1], counter, user, *around[1:]]
    pipeline = tr.PipelineParallel(
        stages, 4, schedule=schedule, loss_fn=lambda output, target: (output * target).mean()
    )
    x = tensor(np.ones((4, WIDTH)))
    expected = [2.0 * 3.0 * (number + 1) for number in range(8)]
    loss = pipeline.step(x, x)
    pairs: Pairs = {"loss": (loss, np.mean(expected[:4]))}
    outputs = pipeline.forward(x)
    if outputs is not None:
        pairs["outputs"] = np.array(outputs.data)[:, 0], np.array(expected[4:])
    return pairs


def of_complex_numbers(rank: int) -> Pairs:
    """Gradients of linear layers, and of a convolution, whose numbers are complex."""
    import torch

    class Complex(torch.nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            found = self.layer(torch.complex(x, 0.5 * x))
            return found.real + 2 * found.imag

    def made() -> Any:
        torch.manual_seed(0)
        wide = {"dtype": torch.complex128}
        layers = (torch.nn.Linear(6, 6, **wide), torch.nn.Conv1d(2, 2, 3, padding=1, **wide))
        return torch.nn.Sequential(*map(Complex, layers))

    def loss_fn(output: Any, target: Any) -> Any:
        return ((output - target) ** 2).mean()

    whole = made()
    x = torch.randn(4, 2, 6, dtype=torch.float64)
    loss_fn(whole(x), x).backward()
    pipeline = tr.PipelineParallel(made(), 2, cuts=["1"], loss_fn=loss_fn, schedule="zb-h1")
    pipeline.step(x, x)
    parameters = dict(whole.named_parameters())
    return {
        name: (each.grad.numpy(), parameters[name].grad.numpy())
        for name, each in pipeline.module.named_parameters()
    }


def inferring(rank: int) -> str:
    """What is said where one rank takes a step in a mode without gradients."""
    import torch

    make, loss_fn, tensor = of("torch")
    pipeline = tr.PipelineParallel(make(), MICROBATCHES, cuts=CUTS[2], loss_fn=loss_fn)
    try:
        with torch.inference_mode(rank == 0):
            pipeline.step(*map(tensor, batch(0)))
    except tr.ConfigError as error:
        return str(error)
    return ""


def marked(rank: int) -> str:
    """What is said where a stage returns a tensor with an attribute that the next one reads."""
    import torch

    class Marking(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            found = x.clone()
            found.scale = 3.0
            return found

    class Scaling(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * getattr(x, "scale", 1.0)

    stages = [torch.nn.Sequential(torch.nn.Linear(2, 2), Marking()), Scaling()]
    pipeline = tr.PipelineParallel(stages, 2, loss_fn=torch.nn.functional.mse_loss)
    try:
        pipeline.step(torch.ones(2, 2), torch.ones(2, 2))
    except tr.PipelineError as error:
        return str(error)
    return ""


def interrupted(rank: int) -> str:
    """What is said in the step after one in which all ranks were interrupted, the first of them
    when it had sent what the second one never received."""

    class Interrupting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.last = 0, 3 if rank == 0 else 1

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == self.last:
                raise KeyboardInterrupt
            return x

    tensor = of("nn")[2]
    stages = [nn.Sequential(nn.Linear(2, 2), Interrupting()), Interrupting()]
    pipeline = tr.PipelineParallel(
        stages, 4, schedule="gpipe", loss_fn=lambda output, target: (output * target).mean()
    )
    x = tensor(np.ones((4, 2)))
    told = ""
    for _ in range(2):
        try:
            pipeline.step(x, x)
        except KeyboardInterrupt:
            told += "interrupted; "
        except tr.TorshError as error:
            told += str(error)
    return told


def of_no_number(rank: int) -> str:
    """What is said where the number of microbatches is none, before any table is built of it."""
    make, loss_fn, _ = of("nn")
    try:
        tr.PipelineParallel(make(), 4.0, cuts=CUTS[2], loss_fn=loss_fn)  # type: ignore[arg-type]
    except tr.ConfigError as error:
        return str(error)
    return ""


def of_many_shapes(rank: int) -> Pairs:
    """Losses of batches of more shapes than are kept, some of them twice; and how many are kept."""
    tensor = of("nn")[2]
    stages = [nn.Linear(2, 2).to("float64"), nn.Linear(2, 2).to("float64")]
    whole = nn.Sequential(*stages)
    pipeline = tr.PipelineParallel(stages, 2, loss_fn=lambda output, _: (output * output).mean())
    pairs: Pairs = {}
    for number in (2, 3, *range(2, 302), 2, 301, 3):
        x = tensor(np.linspace(-1.0, 1.0, 2 * number).reshape(number, 2))
        output = whole(x)
        pairs[f"{len(pairs)}: {number} rows"] = (
            pipeline.evaluate(x, x),
            (output * output).mean().item(),
        )
    kept = len(pipeline._executor._wire._known)
    return {**pairs, "kept": (kept, min(kept, 256))}


def of_large_messages(rank: int, schedule: str) -> Pairs:
    """Gradients where messages lie in shared memory until they are needed, more of them than there
    is room for, and where they are too large for that."""
    tensor = of("nn")[2]
    nn.manual_seed(3)
    stages = [nn.Linear(8, 8).to("float64"), nn.Linear(8, 8).to("float64")]
    whole = nn.Sequential(*copy.deepcopy(stages))
    rows = 3 * [14_000, 14_000, 24_000, 80_000]  # 0.9, 1.5 and 5.1 MB
    pipeline = tr.PipelineParallel(stages, len(rows), schedule=schedule, loss_fn=_square)
    random = np.random.default_rng(0)
    parts = [tensor(random.normal(size=(count, 8))) for count in rows]
    for _ in range(2):  # in the second step ranks know what comes
        pipeline.step(parts, parts)
        for part in parts:
            (_square(whole(part), part) * (len(part.data) / sum(rows))).backward()
    expected = dict(whole.named_parameters())
    return {
        name: (parameter.grad.data, expected[name].grad.data)
        for name, parameter in pipeline.module.named_parameters()
    }


def of_a_constant_stage(rank: int) -> Pairs:
    """Gradients where what the first stage gives wants none, so that messages without anything in
    them come between large ones."""
    tensor = of("nn")[2]
    nn.manual_seed(3)
    stages = [nn.Linear(8, 8).to("float64") for _ in range(4)]
    for parameter in stages[0].parameters():
        parameter.requires_grad = False
    whole = nn.Sequential(*copy.deepcopy(stages))
    pipeline = tr.PipelineParallel(stages, 4, schedule="interleaved", loss_fn=_square)
    x = tensor(np.random.default_rng(0).normal(size=(80_000, 8)))  # messages of 1.3 MB
    for _ in range(2):  # in the second step ranks know what comes
        pipeline.step(x, x)
        _square(whole(x), x).backward()
    expected = dict(whole.named_parameters())
    return {
        name: (parameter.grad.data, expected[name].grad.data)
        for name, parameter in pipeline.module.named_parameters()
        if parameter.requires_grad
    }


def _square(output: Any, target: Any) -> Any:
    return ((output - target) * (output - target)).mean()
