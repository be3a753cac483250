"""What is to be done with the modules of a model: data, and which module a pattern means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torsh_runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Column:
    """A Linear layer whose output features are cut: each rank computes some of them."""

    gather_output: bool = False
    """Whether all ranks get all outputs."""
    unit: int = 1
    """Features that stay together: the width of a head where they are those of heads."""
    sections: tuple[int, ...] = ()
    """Sizes of what is cut each for itself, as (512, 128, 128) of queries, keys and values; none if
    that is all outputs together."""
    sequence_dim: int | None = None
    """The dimension of the input of which each rank has an equal part; None if all have all."""


@dataclass(frozen=True, slots=True)
class Row:
    """A Linear layer whose input features are cut, as the Column layer before it left them."""

    input_is_parallel: bool = True
    """Whether the input has this rank's features only."""
    unit: int = 1
    """As the Column layer's."""
    sequence_dim: int | None = None
    """The dimension of the output of which each rank gets an equal part; None if all get all."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """An Embedding whose rows are cut."""

    sequence_dim: int | None = None
    """As Row's."""


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
    """A LayerNorm, RMSNorm or Dropout that is given a part of what it is for; or an Embedding of
    which each rank gets a part of the results, as those of positions."""

    dim: int
    """Of which each rank has its part; the one that is normalised is whole."""
    cuts: tuple[int, ...] = ()
    """Where it is cut, from 0 to its size; none if the parts are equal."""


Entry = Column | Row | Vocabulary | Attention | Block | Part


def matched(names: Iterable[str], plan: Mapping[str, Entry]) -> dict[str, Entry]:
    """What is to be done with which module. A pattern is a module's name, in which * and ? stand
    for what is between two dots. ConfigError for patterns that match none, or what another one
    does.
    """
    known, found = list(names), dict[str, tuple[str, Entry]]()
    for pattern, entry in plan.items():
        if not isinstance(entry, Entry):
            raise ConfigError(f"the plan has {entry!r} for {pattern!r}: give Column(), Row() etc.")
        hits = [name for name in known if _matches(name, pattern)]
        if not hits:
            near = ", ".join(get_close_matches(pattern, known, 3, 0.3)) or "none like it"
            raise ConfigError(f"{pattern!r} in the plan matches no module; there are: {near}")
        for name in hits:
            if name in found:
                raise ConfigError(
                    f"{found[name][0]!r} and {pattern!r} in the plan both match {name!r}: each "
                    f"module may be matched once"
                )
            found[name] = pattern, entry
    return {name: found[name][1] for name in known if name in found}


def _matches(name: str, pattern: str) -> bool:
    if not name:  # the model itself, which is below no dot
        return not pattern
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
