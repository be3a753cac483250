"""Models in stages, with parts of sequences, with experts, or sharded, right and with mistakes
planted in them; what verify() says of each. Each function is one rank's part, of four.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from support.experts import single
from support.mistakes import Bench, _local_norm
from support.tensor_parallel import Kit, kit

import torsh_runtime as tr
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.layouts import cut

WIDTH, HEAD, CLASSES, LENGTH, ROWS, MICROBATCHES = 8, 2, 12, 8, 8, 2
PLAN = {
    "enter.tokens": tr.Vocabulary(),
    "blocks.*.[qkv]": tr.Column(unit=HEAD),
    "blocks.*.out": tr.Row(unit=HEAD),
    "blocks.*.up": tr.Column(),
    "blocks.*.down": tr.Row(),
    "exit.head": tr.Column(),
}


@dataclass(frozen=True)
class Plant:
    """A model that is spread, and what has to be said of it; nothing if it is right."""

    sizes: dict[str, int]
    spread: Callable[[Bench], Any]
    kind: str = ""
    name: str = ""
    why: str = ""
    step: Callable[..., Any] | None = None
    norm: Callable[[Bench, Any], float] | None = None
    model: dict[str, Any] = field(default_factory=dict)
    padded: bool = False
    """Whether targets leave out some tokens, more on some ranks than on others."""
    build: Callable[..., Any] | None = None
    """Makes the model, of a kit and `model`; None: gpt()."""
    over: tuple[str, ...] = ()
    """Axes whose ranks have experts, two along "ep"."""


def gpt(tools: Kit, ties: bool = False, dropout: float = 0.0) -> Any:
    """A small one whose attention can be changed."""
    nn = tools.nn

    class GPT(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.enter = _enter(tools, dropout)
            self.blocks = nn.ModuleList([_block(tools) for _ in range(3)])
            self.exit, self.is_swapped = _exit(tools), False
            if ties:
                self.exit.head.weight = self.enter.tokens.weight

        def pipeline_layers(self) -> list[str]:
            order = (1, 0, 2) if self.is_swapped else (0, 1, 2)
            return ["enter", *(f"blocks.{number}" for number in order), "exit"]

        def forward(self, indices: Any, positions: Any) -> Any:
            x = self.enter(indices, positions)
            for block in self.blocks:
                x = block(x)
            return self.exit(x)

    tools.seed(0)
    return tools.double(GPT())


def _enter(tools: Kit, dropout: float) -> Any:
    nn = tools.nn

    class Enter(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(CLASSES, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.dropout = nn.Dropout(dropout)

        def forward(self, indices: Any, positions: Any) -> Any:
            return self.dropout(self.tokens(indices) + self.places(positions))

    return Enter()


def _block(tools: Kit) -> Any:
    nn, functional = tools.nn, tools.F

    def whole(query: Any, key: Any, value: Any) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.v, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
            self.attention = whole

        def forward(self, x: Any) -> Any:
            normed = self.norm1(x)
            heads = [self.heads(layer(normed)) for layer in (self.q, self.k, self.v)]
            mixed = self.attention(*heads).transpose(-3, -2)
            x = x + self.out(mixed.reshape(*mixed.shape[:-2], -1))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

        def heads(self, x: Any) -> Any:
            return x.reshape(*x.shape[:-1], -1, HEAD).transpose(-3, -2)

    return Block()


def _exit(tools: Kit) -> Any:
    nn = tools.nn

    class Exit(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(x))

    return Exit()


def sparse(tools: Kit) -> Any:
    """A layer of experts between two others."""
    nn = tools.nn

    class Sparse(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(CLASSES, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.experts, self.head = experts(tools, single()), nn.Linear(WIDTH, CLASSES)

        def forward(self, indices: Any, positions: Any) -> Any:
            x = self.tokens(indices) + self.places(positions)
            found, balance = self.experts(x)
            return self.head(x + found), balance

    tools.seed(0)
    return tools.double(Sparse())


def experts(tools: Kit, mesh: Any, data: Any = None, **options: Any) -> Any:
    dtype: Any = tools.torch.float64 if tools.is_torch else np.float64
    options |= {"mesh": mesh, "data": data, "dtype": dtype, "framework": tools.name}
    return tr.MixtureOfExperts(WIDTH, 6, 4, **options)


# ---- stages


def piped(
    change: Callable[[Bench, Any], object] = lambda bench, pipeline: None,
    wrapper: str = "",
    before: Callable[[Any], object] = lambda model: None,
    plan: Any = None,
    axis: Any = "dp",
    microbatches: int = MICROBATCHES,
    **options: Any,
) -> Callable[[Bench], Any]:
    """In a pipeline, in which something is changed. axis: that a wrapper is over."""

    def spread(bench: Bench) -> Any:
        model, mesh = bench.model, bench.mesh
        before(model)
        if plan:
            tr.parallelize(model, mesh["tp"], plan)
        found = tr.PipelineParallel(
            model,
            microbatches,
            mesh=mesh,
            loss_fn=partial_loss(bench) if plan else loss(bench.tools),
            wrap=wrapped(bench, wrapper, axis) if wrapper else lambda stage: stage,
            **{"cuts": ["blocks.2"], "schedule": "1f1b", **options},
        )
        change(bench, found)
        return found

    return spread


def wrapped(bench: Bench, wrapper: str, axis: Any) -> Callable[[Any], Any]:
    part = bench.mesh[axis]
    return lambda module: getattr(tr, wrapper)(module, process_group=part)


def loss(tools: Kit) -> Callable[[Any, Any], Any]:
    def mean(outputs: Any, targets: Any) -> Any:
        scores, *balance = outputs if isinstance(outputs, tuple) else (outputs,)
        found = tools.F.cross_entropy(scores.reshape(-1, CLASSES), targets.reshape(-1))
        return sum((each.mean() * 0.1 for each in balance), found)

    return mean


def partial_loss(bench: Bench) -> Callable[[Any, Any], Any]:
    tp = bench.mesh["tp"]
    return lambda scores, targets: tr.vocab_parallel_cross_entropy(
        scores, targets, tp, num_classes=CLASSES
    )


def counted(target: Any) -> int:
    return int((np.asarray(target) != -100).sum())


def _on_stage(number: int, method: str, instead: Callable[..., Any]) -> Callable[..., None]:
    """instead(stage, the method, *arguments) takes the place of a stage's method."""

    def change(bench: Bench, pipeline: Any) -> None:
        stage = pipeline._stages.get(number)
        if stage is not None:
            own = getattr(stage, method)
            setattr(stage, method, lambda *arguments: instead(stage, own, *arguments))

    return change


def _lost(stage: Any, own: Any, microbatch: int, gradients: Any) -> Any:
    if microbatch == MICROBATCHES - 1:
        for parameter in stage.module.parameters():
            parameter.grad = None
    return own(microbatch, gradients)


def _doubled(stage: Any, own: Any, microbatch: int, gradients: Any) -> Any:
    return [each + each for each in own(microbatch, gradients)]


def _dropped(stage: Any, own: Any, microbatch: int) -> None:
    later = stage._passages.pop(microbatch)
    assert later.later is not None


def _weighted_alike(bench: Bench, pipeline: Any) -> None:
    assert callable(pipeline._batch_loss.weights)
    pipeline._batch_loss.weights = lambda given: [1.0] * MICROBATCHES


def _unsummed(bench: Bench, pipeline: Any) -> None:
    pipeline._sharing.add_gradients = lambda: None


def _norm_of_a_stage(bench: Bench, pipeline: Any) -> float:
    return _local_norm(pipeline.module, bench.mesh)


def _swapped(model: Any) -> None:
    model.is_swapped = True


# ---- parts of sequences


def context(
    attention: Callable[[Bench], Any] | None = None,
    change: Callable[[Bench], object] = lambda bench: None,
    wrapper: str = "",
    axes: Any = ("dp", "cp"),
) -> Callable[[Bench], Any]:
    """With an attention over parts of sequences, in which something is changed."""

    def spread(bench: Bench) -> Any:
        for block in bench.model.blocks:
            dense = getattr(block, "dense", block)
            object.__setattr__(dense, "attention", (attention or ring)(bench))
        change(bench)
        return wrapped(bench, wrapper, axes)(bench.model) if wrapper else bench.model

    return spread


def ring(bench: Bench, **options: Any) -> Any:
    axis = bench.mesh["cp"]
    return lambda query, key, value: tr.context_attention(query, key, value, axis, **options)


def _own_tokens_only(bench: Bench) -> Any:
    functional = bench.tools.F
    return lambda *heads: functional.scaled_dot_product_attention(*heads, is_causal=True)


def _gathered(bench: Bench) -> Any:
    """Keys and values of all, whose gradients stay with each rank."""
    axis, tools = bench.mesh["cp"], bench.tools
    group, own = axis.get_group(), tr.context_positions(LENGTH, axis)
    everyone: list[Any] = [None] * group.world_size
    tr.all_gather_object(everyone, own.tolist(), group=group)
    order = np.argsort(np.array([*chain(*everyone)]))
    mask = tools.tensor(own[:, None] >= np.arange(LENGTH))

    def attend(query: Any, key: Any, value: Any) -> Any:
        whole = [regions.gather(each, group, 2)[:, :, order] for each in (key, value)]
        return tools.F.scaled_dot_product_attention(query, *whole, attn_mask=mask)

    return attend


def _counting_positions(bench: Bench) -> None:
    places = bench.model.enter.places
    forward = places.forward

    def counted(given: Any) -> Any:
        rows, tokens = given.shape
        return forward(bench.tools.tensor(np.tile(np.arange(tokens), (rows, 1))))

    object.__setattr__(places, "forward", counted)


def by_tokens(bench: Bench, model: Any, batch: Any, target: Any) -> float:
    """A step whose loss counts all tokens alike."""
    group = bench.mesh["dp", "cp"].flatten().get_group()
    total = np.array([counted(target)], np.float64)
    own = float(total[0])
    group.all_reduce(total)
    share = own * group.world_size / total[0]
    found = loss(bench.tools)(model(*batch), target) * float(share)
    found.backward()
    return float(found.item())


# ---- experts


def spread_experts(
    change: Callable[[Bench], object] = lambda bench: None,
    data: Callable[[Bench], Any] = lambda bench: bench.mesh["dp"],
    **options: Any,
) -> Callable[[Bench], Any]:
    """Over the axis ep of a view, in which something is changed."""

    def spread(bench: Bench) -> Any:
        bench.model.experts = as_whole(bench, bench.model.experts, data(bench), **options)
        change(bench)
        return bench.model

    return spread


def counted_alone(bench: Bench) -> None:
    """Each rank counts its own tokens only in the auxiliary loss."""
    for _, module in bench.model.named_modules():
        if isinstance(module, tr.MixtureOfExperts):
            module.ranks = replace(module.ranks, tokens=single().get_group())


def as_whole(bench: Bench, whole: Any, data: Any, **options: Any) -> Any:
    """Experts along ep with the values of those of one process."""
    bench.tools.seed(1)
    own = experts(bench.tools, bench.mesh["ep"], data, **options)
    for name, parameter in own.named_parameters():
        values = getattr(whole, name).data
        layout = own.parameter_layouts.get(name)
        part = values if layout is None else cut(values, layout.piece(bench.mesh.coordinate))
        parameter.data = part + 0.0
    return own


def averaging(axes: dict[str, str]) -> Callable[..., float]:
    """A step that averages gradients of experts, and of all else, along an axis each."""

    def step(bench: Bench, model: Any, batch: Any, target: Any) -> float:
        found = loss(bench.tools)(model(*batch), target)
        found.backward()
        for name, parameter in model.named_parameters():
            is_expert = name in ("experts.up", "experts.down")
            group = bench.mesh.get_group(axes["experts" if is_expert else "all else"])
            gradient = parameter.grad.data
            group.all_reduce(gradient)
            gradient /= group.world_size
        return float(found.item())

    return step


def _norm_with_copies(bench: Bench, model: Any) -> float:
    """All ranks' squares, by how many have all else."""
    total = np.array([_local_norm(model, bench.mesh) ** 2])
    bench.mesh.get_group("ep").all_reduce(total)
    return math.sqrt(total[0])


def _norm_without_experts(bench: Bench, model: Any) -> float:
    model.experts.up.grad = model.experts.down.grad = None
    return tr.clip_grad_norm_(model, math.inf, bench.mesh)


# ---- sharded


def sharded(
    change: Callable[[Bench], object] = lambda bench: None, axis: Any = "dp", **options: Any
) -> Callable[[Bench], Any]:
    """Over the ranks along an axis, parts of layers over those along tp."""

    def spread(bench: Bench) -> Any:
        if "tp" in bench.mesh.mesh_dim_names:
            layers = {name: each for name, each in PLAN.items() if name != "exit.head"}
            tr.parallelize(bench.model, bench.mesh["tp"], layers)
        group = bench.mesh.get_group(axis)
        found = tr.FullyShardedDataParallel(bench.model, process_group=group, **options)
        change(bench)
        return found

    return spread


def _other_values(bench: Bench) -> None:
    if bench.mesh.coordinate["dp"]:
        bench.values("exit.head.weight", lambda own: own + 0.001)


def _hooked(name: str, change: Callable[[Any], Any]) -> Callable[[Bench], None]:
    return lambda bench: bench.gradient(name, change)


STAGES = {"pp": 2, "dp": 2}
THREE = {"pp": 2, "tp": 2}
TOKENS = {"dp": 2, "cp": 2}
SHARDS = {"dp": 2, "tp": 2}
DDP, FSDP = "DistributedDataParallel", "FullyShardedDataParallel"
RIGHT_AVERAGES = averaging({"experts": "edp", "all else": "dp"})
TIED = {"ties": True}

_of_experts = partial(Plant, {"dp": 4}, build=sparse, over=("dp",))

RIGHT: dict[str, Plant] = {
    "stages": Plant(STAGES, piped()),
    "stages, DDP": Plant(STAGES, piped(wrapper=DDP)),
    "stages, FSDP": Plant(STAGES, piped(wrapper=FSDP)),
    "stages, tied": Plant(STAGES, piped(schedule="zb-h1", wrapper=DDP), model=TIED),
    "stages, recomputed": Plant(STAGES, piped(checkpoint=True)),
    "stages, two on each rank": Plant(
        STAGES, piped(schedule="interleaved", cuts=["blocks.0", "blocks.2", "exit"])
    ),
    "stages in a V": Plant(STAGES, piped(schedule="zbv", cuts=["blocks.0", "blocks.2", "exit"])),
    "stages, parts": Plant(THREE, piped(plan=PLAN), model={"dropout": 0.5}),
    "stages, parts, zero bubble": Plant(THREE, piped(plan=PLAN, schedule="zb-h1")),
    "stages, tokens counted": Plant(
        {"pp": 4}, piped(tokens=counted, cuts=["blocks.0", "blocks.1", "exit"]), padded=True
    ),
    "sequences": Plant(TOKENS, context()),
    "sequences, DDP": Plant(TOKENS, context(wrapper=DDP)),
    "sequences, FSDP": Plant(TOKENS, context(wrapper=FSDP)),
    "sequences, tokens counted": Plant(TOKENS, context(wrapper=DDP), step=by_tokens, padded=True),
    "experts": _of_experts(spread_experts()),
    "experts, averaged": _of_experts(spread_experts(), step=RIGHT_AVERAGES),
    "sharded": Plant({"dp": 4}, sharded()),
    "sharded, parts": Plant(SHARDS, sharded()),
    "sharded, units": Plant(
        SHARDS, sharded(sharding_strategy="grad-and-optimizer", min_num_params=32)
    ),
}
"""Models with nothing wrong."""

PLANTED: dict[str, Plant] = {
    "a microbatch's gradients lost": Plant(
        STAGES, piped(_on_stage(1, "backward", _lost)), "gradient", "blocks.2.norm1.weight"
    ),
    "a boundary's gradient doubled": Plant(
        STAGES, piped(_on_stage(1, "backward", _doubled)), "output's gradient", "blocks.1"
    ),
    "a weight gradient's step left out": Plant(
        STAGES,
        piped(_on_stage(1, "weights", _dropped), schedule="zb-h1"),
        "gradient",
        "blocks.2.q.weight",
    ),
    "a loss not divided by microbatches": Plant(STAGES, piped(_weighted_alike), "loss"),
    "a loss of microbatches with unequal tokens": Plant(
        STAGES, piped(tokens=len), "loss", padded=True
    ),
    "tied gradients not added up": Plant(
        STAGES,
        piped(_unsummed),
        "gradient",
        "enter.tokens.weight",
        "each rank has a part of a sum along pp",
        model=TIED,
    ),
    "layers in another order": Plant(
        STAGES, piped(before=_swapped), "activation", "blocks.0.norm1"
    ),
    "a norm of one stage": Plant(STAGES, piped(), "norm", norm=_norm_of_a_stage),
    "a sum left out in a stage": Plant(
        THREE,
        piped(
            before=lambda model: model.blocks[1].down.register_forward_hook(
                lambda _, __, found: found * 0.5
            ),
            plan=PLAN,
        ),
        "activation",
        "blocks.1.down",
        "it is 1/2 of that",
    ),
    "positions counted on each rank": Plant(
        TOKENS, context(change=_counting_positions), "activation", "enter.places"
    ),
    "attention to own tokens only": Plant(
        TOKENS, context(_own_tokens_only), "activation", "blocks.0.out"
    ),
    "attention to what comes": Plant(
        TOKENS, context(lambda b: ring(b, causal=False)), "activation", "blocks.0.out"
    ),
    "gradients of values not added up": Plant(
        TOKENS, context(_gathered), "output's gradient", "blocks.2.v"
    ),
    "gradients averaged over rows only": Plant(
        TOKENS,
        context(wrapper=DDP, axes="dp"),
        "gradient",
        "enter.tokens.weight",
        "each rank along cp has its own, which are not averaged",
    ),
    "shards averaged over rows only": Plant(
        TOKENS, context(wrapper=FSDP, axes="dp"), "gradient", "enter.tokens.weight"
    ),
    "a loss of unequal tokens": Plant(TOKENS, context(wrapper=DDP), "loss", padded=True),
    "tokens of experts dropped": _of_experts(
        spread_experts(capacity_factor=0.5), "activation", "experts"
    ),
    "a router without gradients": _of_experts(
        spread_experts(_hooked("experts.router", lambda g: g * 0.0)),
        "gradient",
        "experts.router",
        "nothing but zeros",
    ),
    "a router's gradient doubled": _of_experts(
        spread_experts(_hooked("experts.router", lambda g: g * 2.0)),
        "gradient",
        "experts.router",
        "it is 2 times that",
    ),
    "experts averaged over all": _of_experts(
        spread_experts(),
        "gradient",
        "experts.up",
        step=averaging({"experts": "dp", "all else": "dp"}),
    ),
    "all else averaged as experts are": _of_experts(
        spread_experts(),
        "gradient",
        "tokens.weight",
        step=averaging({"experts": "edp", "all else": "edp"}),
    ),
    "balance of each rank": _of_experts(spread_experts(counted_alone), "activation", "experts"),
    "balance added up": _of_experts(
        spread_experts(lambda b: b.after("experts", lambda found: (found[0], found[1] * 4.0))),
        "activation",
        "experts",
        "it is 4 times that",
    ),
    "a norm that counts copies": _of_experts(spread_experts(), "norm", norm=_norm_with_copies),
    "a norm without experts": _of_experts(spread_experts(), "norm", norm=_norm_without_experts),
    "a shard of other values": Plant(
        SHARDS, sharded(_other_values), "parameter", "exit.head.weight"
    ),
    "a shard's gradient doubled": Plant(
        SHARDS,
        sharded(_hooked("blocks.1.up.weight", lambda g: g * 2.0)),
        "gradient",
        "blocks.1.up.weight",
        "it is 2 times that",
    ),
    "a norm of one shard": Plant(
        SHARDS, sharded(), "norm", norm=lambda bench, model: _local_norm(model, bench.mesh)
    ),
}
"""By what is wrong."""


def said_of(plant: Plant, framework: str) -> Any:
    """What verify() finds."""
    tools = kit(framework)
    if tools.is_torch:
        tools.torch.set_num_threads(1)
    mesh: Any = tr.init_device_mesh(plant.sizes)
    if plant.over:
        mesh = mesh.view({"edp": -1, "ep": 2}, over=plant.over)
    model = (plant.build or gpt)(tools, **plant.model)
    random = np.random.default_rng(1)
    indices, targets = random.integers(CLASSES, size=(2, ROWS, LENGTH))
    if plant.padded:
        targets[0, :] = targets[1, 2:] = -100
    positions = np.tile(np.arange(LENGTH), (ROWS, 1))
    benches: list[Bench] = []

    def plan(model: Any) -> Any:
        benches.append(Bench(framework, model, mesh))
        return plant.spread(benches[0])

    step, norm = plant.step, plant.norm
    return tr.verify(
        model,
        mesh,
        plan,
        (tools.tensor(indices), tools.tensor(positions)),
        tools.tensor(targets),
        loss=loss(tools),
        step=None if step is None else lambda *given: step(benches[0], *given),
        norm=None if norm is None else lambda model: norm(benches[0], model),
    )
