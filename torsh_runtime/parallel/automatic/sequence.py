"""Makes plans in which ranks have parts of the sequence between layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module
from torsh_runtime.parallel.automatic.families import BETWEEN, FLAT, OTHER_INPUTS
from torsh_runtime.parallel.automatic.heads import Attention
from torsh_runtime.parallel.tensor.plan import (
    Column,
    Entry,
    Experts,
    Heads,
    Part,
    Row,
    Scatter,
    Summed,
    Whole,
)

DIM = 1
"""Dimension of the sequence, after that of rows."""
_INPUTS = ("",)
"""Names the first input of forward()."""
_LAYER = re.compile(r"(?P<stack>(?:[^.\d][^.]*\.)*[^.\d][^.]*)\.\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class _Stack:
    """A list of layers, one after the other."""

    where: str
    size: int

    def layer(self, index: int) -> str:
        return f"{self.where}.{index % self.size}"


def with_sequences(
    plan: Mapping[str, Entry],
    modules: Mapping[str, Module],
    attentions: Mapping[str, Attention],
    ranks: int,
) -> dict[str, Entry]:
    """Return the plan in which each stack of layers cuts the sequence first and gathers it last.

    Plans are by names. Raises ConfigError where layers have modules that may not compute for each
    token alone.
    """
    found = dict(plan)
    _refuse_lists_of_experts(plan, modules)
    _refuse_dropout(modules)
    for stack in _stacks(plan, modules):
        flat = _flat(stack, attentions)
        whole = _gathering(stack, plan, attentions, ranks)
        blocks = _blocks_of_experts(plan, modules, stack)
        found |= whole | blocks
        regions = [where for where in whole if _is_gathered(where, plan)]
        regions += [name for name, entry in plan.items() if isinstance(entry, Summed)]
        for name, module in modules.items():
            if not name.startswith(f"{stack.where}.") or _is_below(name, blocks):
                continue
            if name in plan:
                found[name] = _of_part(name, module, plan[name], flat)
            elif not _is_below(name, regions):
                found |= _alone(name, module)
        found[stack.layer(0)] = Scatter(DIM)
        found[stack.layer(-1)] = Part(DIM, gather_output=True)
    if found == plan:
        raise ConfigError("the model has no list of layers between which sequences could be cut")
    return found


def _is_below(name: str, above: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{each}.") for each in above)


def _is_gathered(where: str, plan: Mapping[str, Entry]) -> bool:
    """Return whether all ranks compute everything that a module computes."""
    return any(
        isinstance(entry, Column) and entry.gather_output and name.startswith(f"{where}.")
        for name, entry in plan.items()
    )


def _stacks(plan: Mapping[str, Entry], modules: Mapping[str, Module]) -> Iterator[_Stack]:
    names = [match["stack"] for match in map(_LAYER.match, plan) if match]
    for name in dict.fromkeys(names):
        stack: Any = modules[name]  # a list of layers
        size = len(stack)
        if size < 2:
            raise ConfigError(
                f"{name!r} has one layer, and sequences are cut before the first one and gathered "
                f"behind the last one: leave out sequence=True"
            )
        yield _Stack(name, size)


def _refuse_lists_of_experts(plan: Mapping[str, Entry], modules: Mapping[str, Module]) -> None:
    for name in modules:
        is_list = name.rpartition(".")[2] == "experts" and name not in plan
        if is_list and any(each.startswith(f"{name}.") and each in modules for each in plan):
            raise ConfigError(
                f"{name!r} holds experts, and the router that says which tokens come to them "
                f"looks at the whole sequence: leave out sequence=True"
            )


def _blocks_of_experts(
    plan: Mapping[str, Entry], modules: Mapping[str, Module], stack: _Stack
) -> dict[str, Entry]:
    """Return entries for modules of experts and their router, whose loss is over all tokens."""
    found: dict[str, Entry] = {}
    for name, entry in plan.items():
        is_summed = isinstance(entry, Summed) and (
            name.rpartition(".")[2] == "experts" or "Experts" in type(modules[name]).__name__
        )
        if not name.startswith(f"{stack.where}.") or not (is_summed or isinstance(entry, Experts)):
            continue
        block = name.rpartition(".")[0]
        if block.count(".") <= stack.where.count(".") + 1:
            raise ConfigError(
                f"{name!r} holds experts, and no module within the layer {block!r} holds both them "
                f"and their router, which looks at the whole sequence: leave out sequence=True"
            )
        found[block] = Whole(DIM)
    return found


def _refuse_dropout(modules: Mapping[str, Module]) -> None:
    for config in (getattr(module, "config", None) for module in modules.values()):
        family = getattr(config, "model_type", "")
        name = BETWEEN.get(family, "")
        if getattr(config, name, None):
            raise ConfigError(
                f"{family} models drop between layers without a module that does it, so "
                f"ranks would drop the same of their parts: set {name} of the configuration to 0, "
                f"or leave out sequence=True"
            )


def _flat(stack: _Stack, attentions: Mapping[str, Attention]) -> tuple[str, ...]:
    """Return names of layers for which rows and sequence are one dimension."""
    inside = (each for name, each in attentions.items() if name.startswith(f"{stack.where}."))
    return next((FLAT.get(each.family, ()) for each in inside), ())


def _of_part(name: str, module: Module, entry: Entry, flat: tuple[str, ...]) -> Entry:
    """Return a layer's entry changed for an input that is a part of the sequence."""
    last = name.rpartition(".")[2]
    dim = 0 if last in flat else DIM
    if isinstance(entry, Heads):
        return replace(entry, sequence_dim=dim, sequence_inputs=_INPUTS)
    if isinstance(entry, Summed):
        return replace(entry, sequence_dim=dim, sequence_inputs=_INPUTS)
    if isinstance(entry, Row) and not entry.output_is_spread:
        return replace(entry, sequence_dim=dim)
    is_query = last in ("q", "q_proj", "q_attn", "query")
    is_given_others = any(each in name for each in OTHER_INPUTS) and not is_query
    if isinstance(entry, Column) and not is_given_others and not hasattr(module, "num_embeddings"):
        return replace(entry, sequence_dim=dim)
    return entry


def _alone(name: str, module: Module) -> dict[str, Entry]:
    """Return the entry, by name, of a module without one. ConfigError if it is not known."""
    kind = type(module).__name__.lower()
    if "dropout" in kind and getattr(module, "p", None):
        return {name: Part(DIM)}
    if not any(each is not None for each in module._parameters.values()):
        return {}
    if "norm" in kind:
        return {name: Part(DIM)}
    raise ConfigError(
        f"{name!r} is a {type(module).__name__} with parameters that the plan says nothing of, and "
        f"it is not known whether it computes for each token alone: leave out sequence=True, or "
        f"give a plan in which it is Part({DIM})"
    )


def _gathering(
    stack: _Stack, plan: Mapping[str, Entry], attentions: Mapping[str, Attention], ranks: int
) -> dict[str, Entry]:
    """Return entries of attentions that have none yet, and need the whole sequence."""
    found: dict[str, Entry] = {}
    for name, entry in plan.items():
        where = name.rpartition(".")[0]
        if not name.startswith(f"{stack.where}.") or not isinstance(entry, Column):
            continue
        if name in attentions and where not in plan:
            found[where] = Heads(ranks, sequence_dim=DIM, sequence_inputs=_INPUTS)
    return found
