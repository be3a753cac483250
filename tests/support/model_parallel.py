"""A GPT on a mesh of stages, data and parts of layers, beside one process; each function one rank's
part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from support.checkpoint_training import everything
from support.tensor_parallel import Kit, kit, plain

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.parallel.layouts import cut, layouts_of, piece_of

WIDTH, HEAD, CLASSES, LENGTH, ROWS, LAYERS, MICROBATCHES = 16, 2, 24, 8, 16, 6, 2
CLIPPED = 0.5
PLAN = {
    "0.tokens": tr.Vocabulary(),
    "*.[qkv]": tr.Column(unit=HEAD),
    "*.out": tr.Row(unit=HEAD),
    "*.up": tr.Column(),
    "*.down": tr.Row(),
    f"{LAYERS + 1}.head": tr.Column(),
}
Run = dict[str, Any]


def gpt(tools: Kit) -> Any:
    """Its layers in order, in float64."""
    nn, functional = tools.nn, tools.F

    class Entrance(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(CLASSES, WIDTH), nn.Embedding(LENGTH, WIDTH)

        def forward(self, indices: Any) -> Any:
            return self.tokens(indices) + self.places(tools.tensor(np.arange(LENGTH)))

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.v, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

        def forward(self, x: Any) -> Any:
            normed = self.norm1(x)
            heads = [self.heads(layer(normed)) for layer in (self.q, self.k, self.v)]
            mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
            mixed = mixed.transpose(-3, -2)
            x = x + self.out(mixed.reshape(*mixed.shape[:-2], -1))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

        def heads(self, x: Any) -> Any:
            return x.reshape(*x.shape[:-1], -1, HEAD).transpose(-3, -2)

    class Exit(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(x))

    tools.seed(0)
    return tools.double(nn.Sequential(Entrance(), *(Block() for _ in range(LAYERS)), Exit()))


def batches(steps: int) -> Iterator[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    for _ in range(steps):
        yield random.integers(CLASSES, size=(2, ROWS, LENGTH))


@cache
def in_one_process(framework: str, steps: int) -> Run:
    tools = kit(framework)
    model = gpt(tools)
    loss = _loss(tools)

    def step(indices: Any, targets: Any) -> float:
        found = loss(model(tools.tensor(indices)), tools.tensor(targets))
        found.backward()
        return float(found.item())

    return _train(tools, model, step, steps, None)


def _loss(tools: Kit) -> Callable[[Any, Any], Any]:
    def loss(scores: Any, targets: Any) -> Any:
        return tools.F.cross_entropy(scores.reshape(-1, CLASSES), targets.reshape(-1))

    return loss


def _train(tools: Kit, model: Any, step: Callable[[Any, Any], float], steps: int, mesh: Any) -> Run:
    """step(indices, targets) makes gradients, and gives the loss."""
    optimizer, losses, norms = tools.adamw(model), [], []
    for indices, targets in batches(steps):
        optimizer.zero_grad()
        losses.append(step(indices, targets))
        norms.append(tr.clip_grad_norm_(model, CLIPPED, mesh))
        optimizer.step()
    parameters = {
        name.replace("module.", ""): plain(each).copy() for name, each in model.named_parameters()
    }
    return {"losses": np.array(losses), "norms": np.array(norms), "parameters": parameters}


def on_mesh(
    framework: str,
    sizes: Mapping[str, int],
    schedule: str,
    wrapper: str,
    steps: int,
    directory: Path,
) -> dict[str, Any]:
    """How far a training on a mesh with the axes pp, dp and tp is from one in one process, and its
    checkpoint from that one's parameters."""
    tools = kit(framework)
    expected = in_one_process(framework, steps)
    mesh = tr.init_device_mesh(sizes)
    here = mesh.coordinate
    model, data = tr.parallelize(gpt(tools), mesh["tp"], PLAN), mesh.get_group("dp")

    def wrapped(stage: Any) -> Any:
        return getattr(tr, wrapper)(stage, process_group=data)

    pipeline = tr.PipelineParallel(
        model,
        num_microbatches=MICROBATCHES,
        mesh=mesh,
        cuts=_cuts(sizes["pp"] * (2 if schedule in ("interleaved", "zbv") else 1)),
        schedule=schedule,
        loss_fn=lambda scores, targets: tr.vocab_parallel_cross_entropy(
            scores, targets, mesh["tp"], num_classes=CLASSES
        ),
        wrap=wrapped,
    )
    rows = ROWS // sizes["dp"]
    own = slice(here["dp"] * rows, (here["dp"] + 1) * rows)

    def step(indices: Any, targets: Any) -> float:
        return float(pipeline.step(tools.tensor(indices[own]), tools.tensor(targets[own])))

    found = _train(tools, pipeline.module, step, steps, mesh)
    apart = {name: np.abs(found[name] - expected[name]).max() for name in ("losses", "norms")}
    bits = {name: found[name].tobytes() for name in ("losses", "norms")}
    if wrapper == "DistributedDataParallel":
        apart |= _parameters_apart(pipeline.module, found, expected, mesh)
    Checkpointer(directory).save(steps, {"model": pipeline.module, "mesh": mesh})
    saved = _saved_apart(next(directory.glob("step-*")), expected)
    return {"apart": {**apart, **saved}, "bits": bits}


def _cuts(stages: int) -> list[str]:
    """Names of the layers that stages after the first one begin with."""
    layers = LAYERS + 2
    return [str(layers * stage // stages) for stage in range(1, stages)]


def _parameters_apart(module: Any, found: Run, expected: Run, mesh: Any) -> dict[str, float]:
    lie = {name.replace("module.", ""): each for name, each in layouts_of(module).items()}
    apart = {}
    for name, value in found["parameters"].items():
        whole = expected["parameters"][name]
        if name in lie:
            whole = cut(whole, piece_of(name, lie[name], mesh))
        assert value.shape == whole.shape, name
        apart[name] = np.abs(value - whole).max()
    return apart


def _saved_apart(path: Path, expected: Run) -> dict[str, float]:
    saved, _ = everything(path)
    assert {f"model/{name}" for name in expected["parameters"]} == {*saved}
    return {
        f"saved {name}": np.abs(saved[f"model/{name}"] - value).max()
        for name, value in expected["parameters"].items()
    }
