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
    """A Linear layer whose output features are cut: each rank computes some of them; or an
    Embedding whose columns are, as biases by head."""

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
    """A Linear layer whose input features are cut, as the Column layer before it left them."""

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
    """An Embedding whose rows are cut."""

    sequence_dim: int | None = None
    """Dimension of the sequence, like Row's."""


@dataclass(frozen=True, slots=True)
class Attention:
    """A MultiheadAttention whose heads are cut."""

    sequence_dim: int | None = None
    """The dimension of inputs and output of which each rank has an equal part."""


@dataclass(frozen=True, slots=True)
class Block:
    """A transformer's layer, with its attention and its MLP: nn.TransformerBlock, or torch's
    TransformerEncoderLayer or TransformerDecoderLayer."""

    sequence_dim: int | None = None
    """The dimension of input and output of which each rank has an equal part."""


@dataclass(frozen=True, slots=True)
class Part:
    """A module that is given a part of what it is for, and does the same to each token, as norms
    and dropout do; or an Embedding of which each rank gets a part of the results, as those of
    positions. All ranks have its parameters, of which gradients are summed."""

    dim: int
    """Dimension of which each rank has its part. The dimension that is normalised is whole."""
    cuts: tuple[int, ...] = ()
    """Positions at which it is cut, from 0 to its size. Empty if the parts are equal."""
    gather_output: bool = False
    """Give all ranks all of its output."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A module or a parameter that all ranks have and each uses in its own way, such as a norm of
    its own heads: gradients are summed."""

    divided: bool = False
    """Divide the parameter by the number of ranks, because each rank adds it to a sum over all
    ranks, in which it has to count once."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A parameter of which each rank has a part, of a module whose forward() takes it as it is."""

    dim: int = 0
    unit: int = 1
    """Indices that stay together."""
    sections: tuple[int, ...] = ()
    """Sections of the dimension, like Column's."""
    key_value_heads: int | None = None
    """Number of heads like Column's, if the parameter has something for each head of queries."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A module of any kind which on each rank computes a part of a sum, as experts whose inner
    features are cut: its inputs are the same on all ranks, and all get the sum. The plan says of
    each of its parameters whether it is Cut() or Shared()."""

    sequence_dim: int | None = None
    """The dimension of inputs and of the output of which each rank has an equal part."""
    sequence_inputs: tuple[str, ...] = ()
    """Arguments of forward() of which each rank has an equal part so, "" for the first, where
    others are for whole sequences, as positions; none: all."""


@dataclass(frozen=True, slots=True)
class Heads:
    """An attention module of any kind, whose heads are cut by the entries of its layers: what it
    counts heads by, and what it is given for all of them.

    An attribute is named as `num_heads`, or `config.num_heads`.
    """

    query_heads: int
    key_value_heads: int | None = None
    """None: as many."""
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
    """A module whose first input all ranks have, and of which each takes its equal part, as the
    first block before which there is no other layer of the plan."""

    dim: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A module of any kind whose first input is a part of a sequence, and which computes with the
    whole of it on all ranks, as a router whose loss is of all tokens, with its experts: that input
    is gathered, and of the first output each rank takes its part."""

    dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """A module whose forward() takes tokens (tokens, features), the experts of each (tokens, top_k)
    and their weights, and gives the weighted sums of what these experts make of the tokens. Each
    rank along the mesh's axis "ep" has some experts, and tokens go to where theirs are.

    The first dimension of all its parameters is that of experts."""

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
