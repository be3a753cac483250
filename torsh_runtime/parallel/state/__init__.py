"""Keeps and restores the state of a training: models, optimizers, and anything with a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.state.contents import Contents, Names, NotedReads, Source
from torsh_runtime.parallel.state.loaders import LoaderState, is_loader
from torsh_runtime.parallel.state.merging import merged_values
from torsh_runtime.parallel.state.models import ModelState, is_model
from torsh_runtime.parallel.state.optimizers import OptimizerState, is_optimizer, settle
from torsh_runtime.parallel.state.plain import decode, encode
from torsh_runtime.parallel.state.whole_optimizers import WholeOptimizer

__all__ = [
    "Contents",
    "PerRank",
    "Restoration",
    "Source",
    "check_state",
    "contents_of",
    "merged_values",
    "settle",
]


class Place(Protocol):
    """Holds the number of this rank and the number of ranks."""

    rank: int
    world_size: int


class PerRank:
    """Wraps an object with a state that each rank has for itself.

    Examples are residuals of compression and a generator of random numbers. A rank gets back the
    state of the rank with its number, if there was one, and otherwise keeps its own.

    Example:
        ```python
        state = {"model": model, "compressor": tr.checkpoint.PerRank(compressor)}
        checkpointer.save(step, state)
        ```
    """

    def __init__(self, thing: Any) -> None:
        """Wrap the object.

        Args:
            thing: An object with state_dict() and load_state_dict().
        """
        self.thing = thing


def contents_of(
    state: Mapping[str, Any], ranks: Place, agreed: frozenset[str] = frozenset()
) -> Contents:
    """Return everything in `state`, as this rank has it.

    agreed: see Contents. Raises ConfigError for objects that cannot be kept.
    """
    contents = Contents(agreed=agreed)
    for name, thing in _named(state, ranks):
        if not isinstance(thing, ModelState | OptimizerState | LoaderState | WholeOptimizer):
            _keep(name, thing, contents)
        else:
            thing.keep(contents)
    return contents


def _keep(name: str, thing: Any, contents: Contents) -> None:
    before = {*contents.tensors}
    tree = thing.state_dict() if _is_stateful(thing) else thing
    contents.values[name] = encode(tree, name, contents.tensors)
    if _is_stateful(thing) and "/" not in name:  # or it is in PerRank
        contents.stateful.add(name)
    if not isinstance(thing, ShardedTensor):
        contents.of_first |= contents.tensors.keys() - before


def check_state(state: Mapping[str, Any], ranks: Place) -> None:
    """Raise ConfigError for models that cannot be kept, as far as that is known by now."""
    for _ in _named(state, ranks):
        pass


class Restoration:
    """Gives everything in a state what was kept of it, once the caller has read all of `reads`."""

    def __init__(
        self,
        state: Mapping[str, Any],
        source: Source,
        ranks: Place,
        strict: bool = True,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Plan the restoration and change nothing yet.

        strict: whether what models and optimizers have must have been kept. names: beginnings of
        models' names, with those that they were kept with.

        Raises CheckpointError for what was not kept, or in another shape or dtype, and ConfigError
        for `names` of no model in the state.
        """
        _check_names(names or {}, state)
        self._source = noted = NotedReads(source, strict, Names(names or {}))
        self._state, self._strict, self._place = state, strict, ranks
        self._loads: list[Callable[[], None]] = []
        self._found: dict[str, Any] = {}
        settle(state.values())
        for name, thing in _named(state, ranks):
            self._plan(name, thing)
        for name in noted.values.keys() - state.keys():
            if "/" not in name:
                self._found[name] = decode(noted.values[name], None, noted)
        self.reads = noted.reads
        """Tensors by name, and the pieces of them that are needed."""

    def misfits(self) -> Sequence[tuple[str, ...]]:
        """Return names of the models that were not kept, and names that were kept of these models
        and that they do not have on this rank."""
        noted, kept, known = self._source, set[str](), set[str]()
        for name, thing in _named(self._state, self._place):
            if isinstance(thing, ModelState):
                kept.update(noted.names(noted.name_of(f"{name}/")))
                known.update(map(noted.name_of, thing.names))
        return tuple(noted.missing), tuple(sorted(kept - known))

    def finish(self) -> dict[str, Any]:
        """Load everything into its owners, after it has been read.

        Returns what belongs to no object in the state: plain values, by name, with arrays in memory
        of their own, including those that the state does not name.
        """
        for load in self._loads:
            load()
        return self._found

    def _plan(self, name: str, thing: Any) -> None:
        noted = self._source
        if isinstance(thing, ModelState):
            self._loads += thing.restore(noted)
        elif name in noted.values:
            if isinstance(thing, OptimizerState):
                self._loads.append(thing.restore(noted, self._strict))
            elif isinstance(thing, LoaderState):
                self._loads.append(thing.restore(noted))
            elif _is_stateful(thing):
                loaded = decode(noted.values[name], None, noted)
                self._loads.append(partial(thing.load_state_dict, loaded))
            else:
                self._found[name] = decode(noted.values[name], thing, noted)
        elif "/" not in name:
            kept = ", ".join(sorted({each.split("/")[0] for each in noted.names("")}))
            raise CheckpointError(f"nothing was kept as {name!r}; there are {kept or 'no tensors'}")


def _check_names(names: Mapping[str, str], state: Mapping[str, Any]) -> None:
    """Raise ConfigError for the beginning of a name that nothing in the state can have."""
    models = [name for name, each in state.items() if is_model(each)]
    for key in names:
        if key.partition("/")[0] not in models:
            known = ", ".join(repr(f"{each}/") for each in models) or "no models in the state"
            raise ConfigError(
                f"names= maps {key!r}, and names of models begin with their keys in the state: "
                f"{known}"
            )


def _named(state: Mapping[str, Any], ranks: Place) -> Iterator[tuple[str, Any]]:
    """Yield each part of the state with the name it is kept by."""
    mesh = _mesh(state)
    models = {name: ModelState(name, each, mesh) for name, each in state.items() if is_model(each)}
    pieces = {key: piece for model in models.values() for key, piece in model.pieces.items()}
    for name, thing in state.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ConfigError(f"no part of the state can be named {name!r}")
        if isinstance(thing, DeviceMesh):
            continue
        if name in models:
            yield name, models[name]
        elif is_optimizer(thing):
            yield name, OptimizerState(name, thing, pieces)
        elif isinstance(thing, PerRank):
            yield f"{name}/rank-{ranks.rank}", thing.thing
        elif is_loader(thing):
            yield name, LoaderState(name, thing, ranks.rank, ranks.world_size)
        else:
            yield name, thing


def _mesh(state: Mapping[str, Any]) -> DeviceMesh | None:
    """Return the mesh of the models' layouts, which is not kept itself."""
    found = [each for each in state.values() if isinstance(each, DeviceMesh)]
    if len(found) > 1:
        raise ConfigError(f"the state has {len(found)} meshes: keep models on others apart")
    return found[0] if found else None


def _is_stateful(thing: object) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
