"""What a training keeps: models, optimizers, and whatever else has a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.parallel.state.contents import Contents, Source
from torsh_runtime.parallel.state.models import ModelState, is_model
from torsh_runtime.parallel.state.optimizers import OptimizerState, is_optimizer
from torsh_runtime.parallel.state.plain import decode, encode

__all__ = ["Contents", "PerRank", "Source", "contents_of", "restore"]


class PerRank:
    """Something with a state that each rank has for itself, such as residuals of compression or a
    generator of random numbers. A rank gets back what the rank of its number had, if there was
    one, and else keeps what it has."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing


def contents_of(state: Mapping[str, Any], rank: int) -> Contents:
    """All of it, as the rank has it. ConfigError for what cannot be kept."""
    contents = Contents()
    for name, thing in _named(state, rank):
        if not isinstance(thing, ModelState | OptimizerState):
            tree = thing.state_dict() if _is_stateful(thing) else thing
            contents.values[name] = encode(tree, name, contents.tensors)
        else:
            thing.keep(contents)
    return contents


def restore(state: Mapping[str, Any], source: Source, rank: int) -> dict[str, Any]:
    """Give everything in `state` what was kept of it. Returns what nobody there takes: plain
    values, by name, with arrays in memory of their own, also those that `state` does not name.

    CheckpointError for what was not kept, or in another shape or dtype.
    """
    found = {}
    for name, thing in _named(state, rank):
        if isinstance(thing, ModelState):
            thing.restore(source)
        elif name in source.values:
            if isinstance(thing, OptimizerState):
                thing.restore(source)
            elif _is_stateful(thing):
                thing.load_state_dict(decode(source.values[name], None, source))
            else:
                found[name] = decode(source.values[name], thing, source)
        elif "/" not in name:
            kept = ", ".join(sorted({each.split("/")[0] for each in source.names("")}))
            raise CheckpointError(f"nothing was kept as {name!r}; there are {kept or 'no tensors'}")
    for name in source.values.keys() - state.keys():
        if "/" not in name:
            found[name] = decode(source.values[name], None, source)
    return found


def _named(state: Mapping[str, Any], rank: int) -> Iterator[tuple[str, Any]]:
    """What each part is kept by."""
    models = {name: ModelState(name, each) for name, each in state.items() if is_model(each)}
    pieces = {key: piece for model in models.values() for key, piece in model.pieces.items()}
    for name, thing in state.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"no part of the state can be named {name!r}")
        if name in models:
            yield name, models[name]
        elif is_optimizer(thing):
            yield name, OptimizerState(name, thing, pieces)
        elif isinstance(thing, PerRank):
            yield f"{name}/rank-{rank}", thing.thing
        else:
            yield name, thing


def _is_stateful(thing: object) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
