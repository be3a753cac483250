"""Describes what is done with the modules of a model, and matches patterns to modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torsh_runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Column:
    """Cuts a Linear layer by output features, of which each rank computes some.

    It also cuts an Embedding by columns, as biases by head.

    Example:
        ```python
        plan = {"mlp.up": tr.Column(), "mlp.down": tr.Row()}
        tr.parallelize(model, mesh, plan)
        ```
    """

    gather_output: bool = False
    """Give all ranks all outputs."""
    unit: int = 1
    """Features that stay together: the width of a head where they are those of heads."""
    sections: tuple[int, ...] = ()
    """Sizes of what is cut each for itself, as (512, 128, 128) of queries, keys and values; none if
    that is all outputs together."""
    sequence_dim: int | None = None
    """The dimension of the input of which each rank has an equal part; None if all have all."""
    query_heads: int | None = None
    """Number of heads of queries that attend to the heads of this layer for keys and values,
    which have `unit` features each. If there are fewer heads than ranks, all ranks have all
    weights, and each computes the heads that its own queries attend to. With sections the first
    one is of the queries themselves."""
    key_value_heads: int | None = None
    """Number of heads of keys and values that this layer's queries, of `unit` features a head,
    attend to. Queries that attend to the same head stay together, unless there are more ranks
    than these."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cuts a Linear layer by input features, as the Column layer before it left them.

    Example:
        ```python
        plan = {"mlp.up": tr.Column(), "mlp.down": tr.Row()}
        tr.parallelize(model, mesh, plan)
        ```
    """

    input_is_parallel: bool = True
    """Expect an input that has only this rank's features."""
    unit: int = 1
    """Features that stay together, like the Column layer's unit."""
    sequence_dim: int | None = None
    """The dimension of the output of which each rank gets an equal part; None if all get all."""
    key_value_heads: int | None = None
    """Number of heads like the Column layer's for queries."""
    output_is_spread: bool = False
    """Let each rank use the sum in its own way, as within a module that is Summed()."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Cuts an Embedding by rows.

    Example:
        ```python
        tr.parallelize(model, mesh, {"embed_tokens": tr.Vocabulary()})
        ```
    """

    sequence_dim: int | None = None
    """Dimension of the sequence, like Row's."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Cuts a MultiheadAttention by heads.

    Example:
        ```python
        tr.parallelize(model, mesh, {"layers.*.self_attn": tr.Attention()})
        ```
    """

    sequence_dim: int | None = None
    """The dimension of inputs and output of which each rank has an equal part."""


@dataclass(frozen=True, slots=True)
class Block:
    """Cuts a transformer's layer, with its attention and its MLP.

    It is for nn.TransformerBlock, and torch's TransformerEncoderLayer or TransformerDecoderLayer.

    Example:
        ```python
        tr.parallelize(model, mesh, {"layers.*": tr.Block()})
        ```
    """

    sequence_dim: int | None = None
    """The dimension of input and output of which each rank has an equal part."""


@dataclass(frozen=True, slots=True)
class Part:
    """Gives a module that does the same to each token, as norms and dropout do, a part of its
    input.

    It is also for an Embedding of which each rank gets a part of the results, as those of
    positions. All ranks have its parameters, of which gradients are summed.

    Example:
        ```python
        tr.parallelize(model, mesh, {"norm": tr.Part(dim=1), "head": tr.Column(sequence_dim=1)})
        ```
    """

    dim: int
    """Dimension of which each rank has its part. The dimension that is normalised is whole."""
    cuts: tuple[int, ...] = ()
    """Positions at which it is cut, from 0 to its size. Empty if the parts are equal."""
    gather_output: bool = False
    """Give all ranks all of its output."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Marks a module or a parameter that all ranks have and each uses in its own way.

    An example is a norm of a rank's own heads. Gradients are summed.

    Example:
        ```python
        plan = {"attn.qkv": tr.Column(unit=64), "attn.q_norm": tr.Shared()}
        ```
    """

    divided: bool = False
    """Divide the parameter by the number of ranks, because each rank adds it to a sum over all
    ranks, in which it has to count once."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cuts a parameter, of a module whose forward() takes it as it is.

    Example:
        ```python
        plan = {"experts": tr.Summed(), "experts.up": tr.Cut(1), "experts.down": tr.Cut(2)}
        ```
    """

    dim: int = 0
    """The dimension of which each rank has a part."""
    unit: int = 1
    """Indices that stay together."""
    sections: tuple[int, ...] = ()
    """Sections of the dimension, like Column's."""
    key_value_heads: int | None = None
    """Number of heads like Column's, if the parameter has something for each head of queries."""


@dataclass(frozen=True, slots=True)
class Summed:
    """Marks a module of any kind which on each rank computes a part of a sum.

    An example is experts whose inner features are cut. Its inputs are the same on all ranks, and
    all get the sum. The plan says of each of its parameters whether it is Cut() or Shared().

    Example:
        ```python
        plan = {"experts": tr.Summed(), "experts.up": tr.Cut(1), "experts.down": tr.Cut(2)}
        ```
    """

    sequence_dim: int | None = None
    """The dimension of inputs and of the output of which each rank has an equal part."""
    sequence_inputs: tuple[str, ...] = ()
    """Arguments of forward() of which each rank has an equal part so, "" for the first, where
    others are for whole sequences, as positions; none: all."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Adapts an attention module of any kind, whose heads are cut by the entries of its layers.

    It says what the module counts heads by, and what it is given for all of them. An attribute is
    named as `num_heads`, or `config.num_heads`.

    Example:
        ```python
        plan = {"attn": tr.Heads(16, cut=("num_heads",)), "attn.q": tr.Column(unit=64)}
        ```
    """

    query_heads: int
    """The number of heads of queries, on all ranks together."""
    key_value_heads: int | None = None
    """The number of heads of keys and values; None: as many."""
    cut: tuple[str, ...] = ()
    """Attributes with the number of heads of queries, or a multiple, as of their features."""
    key_value_cut: tuple[str, ...] = ()
    """Attributes that count heads of keys and values."""
    groups: tuple[str, ...] = ()
    """Attributes with the number of heads of queries for each one of keys and values."""
    inputs: Mapping[str, int] = field(default_factory=dict)
    """Arguments of forward() that are for all heads, and the dimension along which these lie, as
    {"alibi": -3, "attention_mask": 1}; it may be of size 1, or have batches in front of heads."""
    sequence_dim: int | None = None
    """The dimension of the input of which each rank has an equal part; None if all have all."""
    sequence_inputs: tuple[str, ...] = ()
    """Arguments of forward() of which each rank has an equal part so; none: the first."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """Marks a module whose first input all ranks have, and of which each takes its equal part.

    An example is the first block, before which there is no other layer of the plan.

    Example:
        ```python
        plan = {"blocks.0": tr.Scatter(dim=1)}
        ```
    """

    dim: int
    """The dimension of the input that is divided."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Marks a module of any kind that gets a part of a sequence and computes with the whole of it.

    That input, its first, is gathered on all ranks, and of the first output each rank takes its
    part. An example is a router whose loss is of all tokens, with its experts.

    Example:
        ```python
        plan = {"blocks.*.moe": tr.Whole(dim=1)}
        ```
    """

    dim: int
    """The dimension of the sequence."""


@dataclass(frozen=True, slots=True)
class Experts:
    """Gives each rank along the mesh's axis "ep" some experts; tokens go to where theirs are.

    It is for a module whose forward() takes tokens (tokens, features), the experts of each (tokens,
    top_k) and their weights, and returns the weighted sums of what these experts make of the
    tokens. The first dimension of all its parameters is that of experts.

    Example:
        ```python
        tr.parallelize(model, mesh, {"blocks.*.moe.experts": tr.Experts()})
        ```
    """

    counts: tuple[str, ...] = ("num_experts",)
    """Attributes with the number of experts, which become this rank's."""


Entry = (
    Column
    | Row
    | Vocabulary
    | Attention
    | Block
    | Part
    | Shared
    | Cut
    | Summed
    | Heads
    | Scatter
    | Whole
    | Experts
)


@dataclass(frozen=True, slots=True)
class Own:
    """Holds what the plan says of a module, and of its own parameters by their names."""

    entry: Any = None
    parameters: Mapping[str, Cut | Shared] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the text by which ranks compare entries."""
        told = [f"{name} {entry}" for name, entry in sorted(self.parameters.items())]
        return ", ".join([str(self.entry), *told])


def matched(
    modules: Iterable[str], plan: Mapping[str, Entry], parameters: Iterable[str] = ()
) -> dict[str, Entry]:
    """Return what is to be done with each module or parameter. A pattern is a name of one, in
    which * and ? stand for what is between two dots. Raises ConfigError for patterns that match
    none that the entry is for, or one that a different pattern matches."""
    found = dict[str, tuple[str, Entry]]()
    known = {False: list(modules), True: list(parameters)}
    for pattern, entry in plan.items():
        if not isinstance(entry, Entry):
            raise ConfigError(f"the plan has {entry!r} for {pattern!r}: give Column(), Row() etc.")
        names = [] if isinstance(entry, Cut) else known[False]
        if isinstance(entry, Cut | Shared):
            names = names + known[True]
        hits = [name for name in names if _matches(name, pattern)]
        if not hits:
            raise _unmatched(pattern, entry, names, known[True])
        for name in hits:
            if name in found:
                raise ConfigError(
                    f"{found[name][0]!r} and {pattern!r} in the plan both match {name!r}: each "
                    f"module may be matched once"
                )
            found[name] = pattern, entry
    return {name: entry for name, (_, entry) in found.items()}


def _unmatched(pattern: str, entry: Entry, names: list[str], parameters: list[str]) -> ConfigError:
    what = "parameter" if isinstance(entry, Cut) else "module"
    if what == "module" and any(_matches(name, pattern) for name in parameters):
        return ConfigError(
            f"{pattern!r} in the plan matches a parameter, and {type(entry).__name__}() is for "
            f"modules: give Cut() or Shared()"
        )
    near = ", ".join(get_close_matches(pattern, names, 3, 0.3)) or "none like it"
    return ConfigError(f"{pattern!r} in the plan matches no {what}; there are: {near}")


def _matches(name: str, pattern: str) -> bool:
    if not name:  # the model itself, which is below no dot
        return not pattern
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
