"""A GPT on a mesh of stages, data, parts of layers and of sequences, and experts, beside one
process; each function one rank's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from support.checkpoint_training import everything
from support.experts import single
from support.refusing import refused
from support.tensor_parallel import Kit, kit, plain

import torsh_runtime as tr
from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.parallel.layouts import cut, layouts_of, piece_of

WIDTH, HEAD, CLASSES, LENGTH, ROWS, LAYERS, MICROBATCHES = 16, 2, 24, 18, 16, 6, 2
EXPERTS = 5
"""Which do not divide evenly, as LENGTH does not by what cuts sequences."""
CLIPPED, BALANCED = 0.5, 0.01
PLAN = {
    "0.tokens": tr.Vocabulary(),
    "*.[qkv]": tr.Column(unit=HEAD),
    "*.out": tr.Row(unit=HEAD),
    "*.up": tr.Column(),
    "*.down": tr.Row(),
    f"{LAYERS + 1}.head": tr.Column(),
}
IN_PARTS = {
    "0.tokens": tr.Vocabulary(sequence_dim=-2),
    "0.places": tr.Part(-2),
    "*.norm?": tr.Part(-2),
    "*.[qkv]": tr.Column(unit=HEAD, sequence_dim=-2),
    "*.out": tr.Row(unit=HEAD, sequence_dim=-2),
    "*.up": tr.Column(sequence_dim=-2),
    "*.down": tr.Row(sequence_dim=-2),
    f"{LAYERS + 1}.norm": tr.Part(-2),
    f"{LAYERS + 1}.head": tr.Column(sequence_dim=-2),
}
"""The same with sequences in parts along "tp"."""
Run = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """Of a GPT, and of how it is trained."""

    experts: int = 0
    """Over so many ranks, in every other block; 0: there are none."""
    over: tuple[str, ...] = ("dp", "cp")
    """The axes that these ranks lie along."""
    method: Any = "ring"
    """Of attention."""
    checkpoints: bool = False
    passes: int = 1
    """Of the pipeline for an update, of which only the last one averages gradients."""
    strategy: str = "full"
    """Of FullyShardedDataParallel; "hybrid" replicates along "dp"."""
    spreads: bool = False
    """The optimizer's state, over who has the same parameters."""
    in_parts: bool = False
    """Sequences along "tp", between the layers that are cut."""
    dtype: str = "float64"
    is_shifted: bool = False
    """Parameters lie at addresses that other multiples of 16 divide on each rank."""


DENSE = Kind()


def gpt(tools: Kit, kind: Kind, mesh: Any = None) -> Any:
    """Its layers in order, in float64. mesh: along whose "cp" sequences are cut, and experts along
    "ep"; None in one process."""
    tools.seed(0)
    made, block = _ends(tools, mesh), _block(tools, _attention(tools, kind, mesh))
    blocks = [
        block(_experts(tools, kind, mesh) if kind.experts and number % 2 else None)
        for number in range(LAYERS)
    ]
    model = tools.double(_row(tools)(made[0], *blocks, made[1]))
    if kind.dtype == "float64":
        return model
    return model.to(getattr(tools.torch, kind.dtype) if tools.is_torch else kind.dtype)


def _row(tools: Kit) -> Any:
    class Layers(tools.nn.Sequential):  # type: ignore[misc,name-defined]
        def forward(self, values: Any) -> Any:
            first, *others = self.children()
            values = first(values)
            for layer in others:
                values = layer(*values)
            return values

        def pipeline_layers(self) -> list[str]:
            return [name for name, _ in self.named_children()]

    return Layers


def _ends(tools: Kit, mesh: Any) -> tuple[Any, Any]:
    nn = tools.nn

    class Entrance(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(CLASSES, WIDTH), nn.Embedding(LENGTH, WIDTH)

        def forward(self, indices: Any) -> Any:
            places = np.arange(LENGTH) if mesh is None else tr.context_positions(LENGTH, mesh["cp"])
            balance = tools.tensor(np.zeros(1))
            return self.tokens(indices) + self.places(tools.tensor(places)), balance

    class Exit(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)

        def forward(self, x: Any, balance: Any) -> Any:
            return self.head(self.norm(x)), balance

    return Entrance(), Exit()


def _block(tools: Kit, attention: Callable[..., Any]) -> Any:
    nn = tools.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, experts: Any) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.v, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.experts = experts
            if experts is None:
                self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

        def forward(self, x: Any, balance: Any) -> Any:
            normed = self.norm1(x)
            mixed = attention(*(self.heads(layer(normed)) for layer in (self.q, self.k, self.v)))
            mixed = mixed.transpose(-3, -2)
            x = x + self.out(mixed.reshape(*mixed.shape[:-2], -1))
            normed = self.norm2(x)
            if self.experts is None:
                return x + self.down(tools.F.gelu(self.up(normed))), balance
            found, more = self.experts(normed)
            return x + found, balance + more

        def heads(self, x: Any) -> Any:
            return x.reshape(*x.shape[:-1], -1, HEAD).transpose(-3, -2)

    return Block


def _attention(tools: Kit, kind: Kind, mesh: Any) -> Callable[..., Any]:
    if mesh is None:
        return partial(tools.F.scaled_dot_product_attention, is_causal=True)
    return partial(tr.context_attention, axis=mesh["cp"], method=kind.method, length=LENGTH)


def _experts(tools: Kit, kind: Kind, mesh: Any) -> Any:
    if mesh is None:
        ranks = {"mesh": single()}
    elif kind.in_parts and "tp" in mesh.coordinate:
        ranks = {"mesh": mesh["ep"], "data": mesh["dp", "cp", "tp"], "sequence": mesh["tp"]}
    else:
        ranks = {"mesh": mesh["ep"], "data": mesh["dp", "cp"]}
    dtype: Any = tools.torch.float64 if tools.is_torch else np.float64
    options = {**ranks, "dtype": dtype, "framework": tools.name}
    return tr.MixtureOfExperts(WIDTH, 8, EXPERTS, **options)


def batches(steps: int) -> Iterator[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    for _ in range(steps):
        yield random.integers(CLASSES, size=(2, ROWS, LENGTH))


@cache
def in_one_process(framework: str, steps: int, has_experts: bool) -> Run:
    tools = kit(framework)
    model = gpt(tools, Kind(int(has_experts)))

    def step(indices: Any, targets: Any) -> float:
        total = 0.0
        parts = (np.split(each, MICROBATCHES) for each in (indices, targets))
        for own, wanted in zip(*parts, strict=True):
            scores, balance = model(tools.tensor(own))
            flat = scores.reshape(-1, CLASSES)
            loss = tools.F.cross_entropy(flat, tools.tensor(wanted.reshape(-1)))
            loss = (loss + balance.sum() * BALANCED) / MICROBATCHES
            loss.backward()
            total += float(loss.item())
        return total

    return _train(tools, model, step, steps, None)


def _train(
    tools: Kit,
    model: Any,
    step: Callable[[Any, Any], float],
    steps: int,
    mesh: Any,
    spreads: bool = False,
) -> Run:
    """step(indices, targets) makes gradients, and gives the loss."""
    optimizer, losses, norms = tools.adamw(model, mesh["dp", "cp"] if spreads else None), [], []
    for indices, targets in batches(steps):
        optimizer.zero_grad()
        losses.append(step(indices, targets))
        norms.append(tr.clip_grad_norm_(model, CLIPPED, mesh))
        optimizer.step()
    parameters = {
        name.replace("module.", ""): _bits(tools, each) for name, each in model.named_parameters()
    }
    return {"losses": np.array(losses), "norms": np.array(norms), "parameters": parameters}


def _bits(tools: Kit, parameter: Any) -> Any:
    """Its values; numpy has no bfloat16, of which these are float32."""
    if tools.is_torch and parameter.dtype == tools.torch.bfloat16:
        parameter = parameter.detach().float()
    return plain(parameter).copy()


def on_mesh(
    framework: str,
    sizes: Mapping[str, int],
    schedule: str,
    wrapper: str,
    steps: int,
    directory: Path,
    kind: Kind = DENSE,
) -> dict[str, Any]:
    """How far a training on a mesh with the axes pp, dp and tp, maybe cp, is from one in one
    process, and its checkpoint from that one's parameters; and whether another mesh reads that."""
    tools = kit(framework)
    expected = in_one_process(framework, steps, bool(kind.experts))
    mesh, pipeline, found = _trained(tools, sizes, schedule, wrapper, steps, kind)
    apart = {name: np.abs(found[name] - expected[name]).max() for name in ("losses", "norms")}
    bits = {name: found[name].tobytes() for name in ("losses", "norms")}
    replicas: dict[str, bytes] = {}
    if wrapper == "DistributedDataParallel":
        replicas = _by_piece(pipeline.module, found, mesh)
        apart |= _parameters_apart(pipeline.module, found, expected, mesh)
    Checkpointer(directory).save(steps, {"model": pipeline.module, "mesh": mesh})
    saved, _ = everything(next(directory.glob("step-*")))
    apart |= _saved_apart(saved, expected)
    reloaded = _reloaded(tools, kind, directory, saved)
    return {"apart": apart, "bits": bits, "replicas": replicas, "reloaded": reloaded}


def replicas(
    framework: str, sizes: Mapping[str, int], schedule: str, steps: int, kind: Kind, rank: int
) -> dict[str, bytes]:
    """Bits of what this rank has after a training, by parameter and part of it: those of losses,
    norms, parameters."""
    if framework == "torch":
        import torch

        torch.set_num_threads(1)  # as torshrun does where ranks share processors
    parts = _trained(kit(framework), sizes, schedule, "DistributedDataParallel", steps, kind)
    mesh, pipeline, found = parts
    bits = {name: found[name].tobytes() for name in ("losses", "norms")}
    return bits | _by_piece(pipeline.module, found, mesh)


def _trained(
    tools: Kit, sizes: Mapping[str, int], schedule: str, wrapper: str, steps: int, kind: Kind
) -> tuple[Any, Any, Run]:
    """The mesh, the pipeline on it, and what came of its training."""
    mesh = tr.init_device_mesh(sizes if "cp" in sizes else {"cp": 1, **sizes})
    if kind.experts:
        mesh = mesh.view({"edp": -1, "ep": kind.experts}, over=kind.over)
    pipeline = _pipeline(tools, sizes, schedule, wrapper, mesh, kind)

    def own(whole: Any) -> Any:
        """Of each microbatch this rank's rows, and of these its tokens."""
        parts = whole.reshape(pipeline.num_microbatches, sizes["dp"], -1, LENGTH)
        shared = parts[:, mesh.coordinate["dp"]].reshape(-1, LENGTH)
        return tools.tensor(tr.context_shard(shared, mesh["cp"]))

    def step(indices: Any, targets: Any) -> float:
        *held, last = zip(*(np.split(a, kind.passes) for a in (indices, targets)), strict=True)
        found = 0.0
        with ExitStack() as blocks:
            for stage in pipeline.stages.values():
                blocks.enter_context(stage.no_sync())
            for batch in held:
                found += pipeline.step(*map(own, batch))
        return found + pipeline.step(*map(own, last))

    return mesh, pipeline, _train(tools, pipeline.module, step, steps, mesh, kind.spreads)


def _pipeline(
    tools: Kit,
    sizes: Mapping[str, int],
    schedule: str,
    wrapper: str,
    mesh: tr.DeviceMesh,
    kind: Kind,
) -> tr.PipelineParallel:
    """The spread model."""
    plan = IN_PARTS if kind.in_parts else PLAN
    model = tr.parallelize(gpt(tools, kind, mesh), mesh["tp"], plan)
    options = {} if wrapper == "DistributedDataParallel" else _sharding(kind)

    def wrapped(stage: Any) -> Any:
        if kind.is_shifted:
            _shift(tools, stage, mesh.get_rank())
        return getattr(tr, wrapper)(stage, process_group=mesh["dp", "cp"], **options)

    def loss(outputs: Any, targets: Any) -> Any:
        scores, balance = outputs
        wrong = tr.vocab_parallel_cross_entropy(scores, targets, mesh["tp"], num_classes=CLASSES)
        return (balance.sum() * BALANCED + wrong) / kind.passes

    return tr.PipelineParallel(
        model,
        num_microbatches=MICROBATCHES // kind.passes,
        mesh=mesh,
        cuts=_cuts(sizes["pp"] * (2 if schedule in ("interleaved", "zbv") else 1)),
        schedule=schedule,
        loss_fn=loss,
        tokens=lambda targets: np.prod(targets.shape),
        checkpoint=kind.checkpoints,
        wrap=wrapped,
    )


def _shift(tools: Kit, model: Any, rank: int) -> None:
    """Put parameters 16, 32 … bytes behind where torch's memory is aligned. numpy's is aligned to
    16 bytes; what begins in between BLAS libraries do not round alike."""
    for parameter in model.parameters():
        values = parameter.data
        size = int(np.prod(values.shape))
        start = 16 * (rank + 1) // (values.element_size() if tools.is_torch else values.itemsize)
        if tools.is_torch:
            memory = values.new_empty(size + start)[start:]
        else:
            memory = np.empty(size + start, values.dtype)[start:]
        memory[:] = values.reshape(-1)
        parameter.data = memory.reshape(values.shape)


def _sharding(kind: Kind) -> dict[str, Any]:
    """A unit for each block, or for each layer of some size, all of which are sharded."""
    blocks, large = tr.ModuleTypeBasedAutoWrap(("Block",)), tr.SizeBasedAutoWrap(400)
    units = blocks if kind.strategy == "full" else large
    return {"min_num_params": 0, "auto_wrap_policy": units, "sharding_strategy": kind.strategy}


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
        apart[name] = np.abs(value - whole).max(initial=0.0)
    return apart


def _by_piece(module: Any, found: Run, mesh: Any) -> dict[str, bytes]:
    """The bits of parameters, of which all ranks with the same piece have the same."""
    lie = {name.replace("module.", ""): each for name, each in layouts_of(module).items()}
    return {
        f"{name} {piece_of(name, lie[name], mesh) if name in lie else ''}": value.tobytes()
        for name, value in found["parameters"].items()
    }


def _saved_apart(saved: Run, expected: Run) -> dict[str, float]:
    assert {f"model/{name}" for name in expected["parameters"]} == {*saved}
    return {
        f"saved {name}": np.abs(saved[f"model/{name}"] - value).max()
        for name, value in expected["parameters"].items()
    }


def _reloaded(tools: Kit, kind: Kind, directory: Path, saved: Run) -> bool:
    """Whether a mesh of data alone, over all of which experts are spread, gets the same bits."""
    mesh = tr.init_device_mesh({"dp": -1, "cp": 1}).view({"edp": 1, "ep": -1}, over=("dp",))
    model = gpt(tools, kind, mesh)
    Checkpointer(directory).load({"model": model, "mesh": mesh})
    lie = layouts_of(model)
    return all(
        plain(each).tobytes()
        == np.ascontiguousarray(
            cut(saved[f"model/{name}"], piece_of(name, lie[name], mesh))
            if name in lie
            else saved[f"model/{name}"]
        ).tobytes()
        for name, each in model.named_parameters()
    )


def refusals(rank: int) -> dict[str, str]:
    """What is said to four ranks that ask for what does not fit; "" where nothing is."""
    tools = kit("nn")
    mesh = tr.init_device_mesh({"pp": 1, "dp": 2, "cp": 2, "tp": 1})
    spread = mesh.view({"edp": 2, "ep": 2}, over=("dp", "cp"))
    model = gpt(tools, Kind(2), spread)
    kept = tr.init_device_mesh({"pp": 2, "dp": 2})
    whole = tools.tensor(np.zeros((1, 1, LENGTH, HEAD)))

    def pipeline(stages: int, microbatches: int, rows: int = ROWS) -> None:
        made = tr.PipelineParallel(
            tools.nn.Sequential(*(tools.nn.Linear(2, 2) for _ in range(LAYERS))),
            microbatches,
            mesh=kept,
            cuts=[str(number) for number in range(1, stages)],
            loss_fn=lambda found, wanted: (found - wanted).square().mean(),
        )
        batch = tools.tensor(np.zeros((rows, 2), np.float32))
        made.step(batch, batch)

    asked: dict[str, Callable[[], Any]] = {
        "sizes": lambda: tr.init_device_mesh({"pp": 3, "dp": -1}),
        "heads": lambda: tr.parallelize(
            gpt(tools, DENSE), kept["dp"], {"*.q": tr.Column(unit=WIDTH)}
        ),
        "stages": lambda: pipeline(3, 2),
        "layers": lambda: pipeline(LAYERS + 2, 2),
        "no microbatch": lambda: pipeline(2, 0),
        "microbatches": lambda: pipeline(2, 4, rows=3),
        "ranks of experts": lambda: mesh.view({"edp": -1, "ep": 3}, over=("dp", "cp")),
        "axes of experts": lambda: tr.MixtureOfExperts(4, 4, 4, mesh=mesh["dp", "cp"]),
        "experts of a token": lambda: tr.MixtureOfExperts(4, 4, 2, 3, mesh=spread["ep"]),
        "a group": lambda: tr.DistributedDataParallel(model, process_group=mesh.get_group("dp")),
        "no group": lambda: tr.FullyShardedDataParallel(model),
        "another mesh": lambda: tr.DistributedDataParallel(model, process_group=kept["dp"]),
        "tokens": lambda: tr.context_shard(np.zeros((1, 3)), mesh["cp"]),
        "own tokens": lambda: tr.context_attention(*[whole] * 3, mesh["cp"], length=LENGTH),
        "heads of a rank": lambda: tr.context_attention(
            *[whole] * 3, mesh["cp"], True, "all_to_all"
        ),
    }
    return refused(asked)
