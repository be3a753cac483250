"""Models in stages whose sequences are cut as well, or which have experts, right and with mistakes
planted in them, as in planted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from support.experts import single
from support.mistakes import Bench, _local_norm
from support.planted import (
    DDP,
    FSDP,
    Plant,
    _counting_positions,
    _doubled,
    _dropped,
    _gathered,
    _hooked,
    _lost,
    _on_stage,
    _own_tokens_only,
    as_whole,
    context,
    counted,
    counted_alone,
    experts,
    gpt,
    piped,
    ring,
)
from support.tensor_parallel import Kit

BLOCKS = 3
V = {"schedule": "zbv", "cuts": ["blocks.0", "blocks.2", "exit"]}


def sparse_gpt(tools: Kit, **options: Any) -> Any:
    """Each of its blocks has experts, whose balance goes from layer to layer as a second value."""
    tools.seed(0)
    made = gpt(tools)
    made.enter = _with_balance(tools, made.enter)
    made.blocks = tools.nn.ModuleList([_sparse(tools, block, options) for block in made.blocks])
    made.exit = _with_scores(tools, made.exit)
    object.__setattr__(made, "forward", partial(_called, made))
    return tools.double(made)


def _called(model: Any, indices: Any, positions: Any) -> Any:
    values = model.enter(indices, positions)
    for layer in (*model.blocks, model.exit):
        values = layer(*values)
    return values


def _with_balance(tools: Kit, enter: Any) -> Any:
    class Enter(tools.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.sum = enter

        def forward(self, indices: Any, positions: Any) -> Any:
            x = self.sum(indices, positions)
            return x, x[:, :1, 0] * 0.0

    return Enter()


def _sparse(tools: Kit, dense: Any, options: dict[str, Any]) -> Any:
    class Block(tools.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.experts = dense, experts(tools, single(), **options)

        def forward(self, x: Any, balance: Any) -> Any:
            x = self.dense(x)
            found, more = self.experts(x)
            return x + found, balance + more

    return Block()


def _with_scores(tools: Kit, exit: Any) -> Any:
    class Exit(tools.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scores = exit

        def forward(self, x: Any, balance: Any) -> Any:
            return self.scores(x), balance

    return Exit()


def with_experts(
    stages: Callable[[Bench], Any],
    change: Callable[[Bench], object] = lambda bench: None,
    data: Callable[[Bench], Any] = lambda bench: bench.mesh["dp"],
    **options: Any,
) -> Callable[[Bench], Any]:
    """The experts of its blocks over the axis ep, and then in stages; something is changed."""

    def spread(bench: Bench) -> Any:
        for block in bench.model.blocks:
            block.experts = as_whole(bench, block.experts, data(bench), **options)
        change(bench)
        return stages(bench)

    return spread


def with_context(stages: Callable[[Bench], Any], **options: Any) -> Callable[[Bench], Any]:
    """Attention over parts of sequences, and then in stages. options: of context()."""
    attend = context(**options)

    def spread(bench: Bench) -> Any:
        attend(bench)
        return stages(bench)

    return spread


def averaging(axes: Callable[[str], str]) -> Callable[..., float]:
    """A step that averages the gradient of each parameter along an axis."""

    def step(bench: Bench, pipeline: Any, batch: Any, target: Any) -> float:
        found = float(pipeline.step(batch, target))
        for name, parameter in pipeline.module.named_parameters():
            group = bench.mesh.get_group(axes(name))
            gradient = parameter.grad.data
            group.all_reduce(gradient)
            gradient /= group.world_size
        return found

    return step


def _is_expert(name: str) -> bool:
    return name.endswith(("experts.up", "experts.down"))


def _norm_with_copies(bench: Bench, pipeline: Any) -> float:
    total = np.array([_local_norm(pipeline.module, bench.mesh) ** 2])
    for axis in ("pp", "ep"):
        bench.mesh.get_group(axis).all_reduce(total)
    return math.sqrt(total[0])


def _without_earlier_balance(bench: Bench) -> None:
    block = bench.model.blocks[2]
    own = block.forward
    object.__setattr__(block, "forward", lambda x, balance: own(x, balance * 0.0))


TOKENS = {"pp": 2, "cp": 2}
EXPERTS = {"pp": 2, "dp": 2}
_sequences = partial(Plant, TOKENS)
_of_experts = partial(Plant, EXPERTS, build=sparse_gpt, over=("dp",))
_whole_tokens = piped(tokens=counted, wrapper=DDP, axis="cp")
_over_cp = piped(wrapper=DDP, axis="cp")
_over_dp = piped(wrapper=DDP)
_of_both = partial(Plant, TOKENS, build=sparse_gpt, over=("cp",))
_of_own_tokens = partial(with_experts, data=lambda bench: bench.mesh["cp"])
_by_hand = averaging(lambda name: "edp" if _is_expert(name) else "dp")

RIGHT: dict[str, Plant] = {
    "stages of sequences": _sequences(with_context(_over_cp)),
    "stages of sequences, averaged by nobody": _sequences(with_context(piped())),
    "stages of sequences, FSDP": _sequences(with_context(piped(wrapper=FSDP, axis="cp"))),
    "stages of sequences, zero bubble": _sequences(
        with_context(piped(wrapper=DDP, axis="cp", schedule="zb-h1"))
    ),
    "stages of sequences in a V": _sequences(with_context(piped(wrapper=DDP, axis="cp", **V))),
    "stages of sequences, recomputed": _sequences(with_context(piped(checkpoint=True))),
    "stages of sequences, by heads": _sequences(
        with_context(_over_cp, attention=lambda b: ring(b, method="all_to_all"))
    ),
    "stages of sequences, tokens counted": _sequences(with_context(_whole_tokens), padded=True),
    "stages of experts": _of_experts(with_experts(_over_dp)),
    "stages of experts, averaged by nobody": _of_experts(with_experts(piped())),
    "stages of experts, averaged by hand": _of_experts(with_experts(piped()), step=_by_hand),
    "stages of experts, FSDP": _of_experts(with_experts(piped(wrapper=FSDP))),
    "stages of experts, zero bubble": _of_experts(
        with_experts(piped(wrapper=DDP, schedule="zb-h1"))
    ),
    "stages of experts in a V": _of_experts(with_experts(piped(wrapper=DDP, **V))),
    "stages of experts, recomputed": _of_experts(with_experts(piped(checkpoint=True))),
    "stages of experts, some dropped": _of_experts(
        with_experts(_over_dp, capacity_factor=0.8), model={"capacity_factor": 0.8}
    ),
    "stages of experts, microbatches of several sizes": _of_experts(
        with_experts(piped(wrapper=DDP, microbatches=3))
    ),
    "stages of sequences and experts": _of_both(_of_own_tokens(with_context(_over_cp))),
    "stages of sequences and experts, zero bubble": _of_both(
        _of_own_tokens(with_context(piped(wrapper=DDP, axis="cp", schedule="zb-h1")))
    ),
}
"""Models with nothing wrong."""

PLANTED: dict[str, Plant] = {
    "own tokens only in stages": _sequences(
        with_context(_over_cp, attention=_own_tokens_only), "activation", "blocks.0.out"
    ),
    "what comes in stages": _sequences(
        with_context(_over_cp, attention=lambda b: ring(b, causal=False)),
        "activation",
        "blocks.0.out",
    ),
    "positions counted on each rank of a stage": _sequences(
        with_context(_over_cp, change=_counting_positions), "activation", "enter.places"
    ),
    "gradients of values of a stage not added up": _sequences(
        with_context(_over_cp, attention=_gathered), "output's gradient", "blocks.2.v"
    ),
    "a boundary's gradient doubled for parts of sequences": _sequences(
        with_context(piped(_on_stage(1, "backward", _doubled))), "output's gradient", "blocks.1"
    ),
    "a microbatch's gradients lost for parts of sequences": _sequences(
        with_context(piped(_on_stage(1, "backward", _lost))), "gradient", "blocks.2.norm1.weight"
    ),
    "a weight gradient's step left out for parts of sequences": _sequences(
        with_context(piped(_on_stage(1, "weights", _dropped), schedule="zb-h1")),
        "gradient",
        "blocks.2.q.weight",
    ),
    "gradients of parts of sequences averaged along stages' axis only": _sequences(
        with_context(piped()),
        "gradient",
        "enter.tokens.weight",
        "each rank along cp has its own, which are not averaged",
        step=lambda bench, pipeline, *batch: pipeline.step(*batch),
    ),
    "a loss of unequal tokens in stages": _sequences(
        with_context(piped(tokens=len, wrapper=DDP, axis="cp")), "loss", padded=True
    ),
    "tokens of a stage's experts dropped": _of_experts(
        with_experts(_over_dp, capacity_factor=0.5), "activation", "blocks.0.experts"
    ),
    "a router of a stage without gradients": _of_experts(
        with_experts(_over_dp, _hooked("blocks.2.experts.router", lambda g: g * 0.0)),
        "gradient",
        "blocks.2.experts.router",
        "nothing but zeros",
    ),
    "experts of stages averaged over all": _of_experts(
        with_experts(piped()),
        "gradient",
        "blocks.0.experts.up",
        step=averaging(lambda name: "dp"),
    ),
    "all else of stages averaged as experts are": _of_experts(
        with_experts(piped()),
        "gradient",
        "enter.sum.tokens.weight",
        "each rank along dp has its own, which are not averaged",
        step=averaging(lambda name: "edp"),
    ),
    "balance of each rank of a stage": _of_experts(
        with_experts(_over_dp, counted_alone), "activation", "blocks.0.experts"
    ),
    "balance of earlier stages left out": _of_experts(
        with_experts(_over_dp, _without_earlier_balance), "activation", "blocks.2"
    ),
    "a boundary's gradient doubled for experts": _of_experts(
        with_experts(piped(_on_stage(1, "backward", _doubled))), "output's gradient", "blocks.1"
    ),
    "a microbatch's gradients of experts lost": _of_experts(
        with_experts(piped(_on_stage(1, "backward", _lost))),
        "gradient",
        "blocks.2.dense.norm1.weight",
    ),
    "own tokens only in stages with experts": _of_both(
        _of_own_tokens(with_context(_over_cp, attention=_own_tokens_only)),
        "activation",
        "blocks.0.dense.out",
    ),
    "balance of own tokens": _of_both(
        _of_own_tokens(with_context(_over_cp), counted_alone),
        "activation",
        "blocks.0.experts",
    ),
    "a norm of stages that counts copies": _of_experts(
        with_experts(_over_dp), "norm", norm=_norm_with_copies
    ),
}
"""By what is wrong."""
