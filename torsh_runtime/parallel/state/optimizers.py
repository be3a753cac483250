"""Keeps optimizers, with their state under the names of its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from torsh_runtime import framework as port
from torsh_runtime.arrays.raw import empty_apart, framework_of, is_array
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.framework import Tensor
from torsh_runtime.framework.optimizer import Optimizer
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.optimizer import DistributedOptimizer
from torsh_runtime.parallel.state.contents import Contents, Source
from torsh_runtime.parallel.state.merging import GROUPS, of_pieces, pieces_in
from torsh_runtime.parallel.state.plain import (
    check_dense,
    decode,
    encode,
    encode_number,
    is_number,
    is_subclass,
)

Pieces = Mapping[int, tuple[str, Piece]]


class OptimizerState:
    """Keeps an optimizer of torch or tr.optim, or a DistributedOptimizer around one.

    Where ranks have pieces of a parameter, state of its shape is cut in the same way, and numbers
    are the same for all pieces. State of any other kind, such as scales of blocks, makes sense with
    the rank's own piece only: then all state of the parameter is kept by pieces.
    """

    def __init__(self, name: str, optimizer: Optimizer, pieces: Pieces) -> None:
        """Prepare to keep an optimizer. pieces: those of all models' parameters, by id().

        Raises ConfigError if parameters of several models have the same name."""
        _check_distinct(name, optimizer, pieces)
        self._name = name
        self._optimizer = optimizer
        self._pieces = pieces

    def keep(self, contents: Contents) -> None:
        """Add the optimizer's state to what is kept."""
        for parameter, state in self._own().state.items():
            key, piece = self._piece(parameter)
            if piece.size or piece.is_whole:
                name = f"{self._name}/state/{key}"
                self._keep_state(name, ShardedTensor(parameter, piece), state, contents)
        contents.values[self._name] = {GROUPS: self._packed_groups(contents)}

    def _keep_state(
        self, name: str, of: ShardedTensor, state: Mapping[str, Any], contents: Contents
    ) -> None:
        """Keep the state of one parameter. `of`: this rank's piece of the parameter."""
        cut = {key: each for key, each in state.items() if is_cut(key, each, of.values.shape)}
        where = name
        if not of.piece.is_whole:
            if not all(is_common(key, each) for key, each in state.items() if key not in cut):
                contents.by_pieces.add(name)
            if name in contents.by_pieces | contents.agreed:
                cut, where = {}, f"{name}/{of.piece.label}"
        for key, each in cut.items():
            check_dense(f"{name}/{key}", each)
            contents.tensors[f"{name}/{key}"] = ShardedTensor(each, of.piece)
        plain = {
            key: (encode_number if is_common(key, each) else encode)(
                each, f"{where}/{key}", contents.tensors
            )
            for key, each in state.items()
            if key not in cut
        }
        if plain:
            contents.values[name] = (
                plain if of.piece.is_whole else of_pieces({of.piece.label: plain})
            )

    def restore(self, source: Source, strict: bool = True) -> Callable[[], None]:
        """Read the kept state, and return a function that loads it. Unless `strict`, parameters
        without any keep their options and begin with no state."""
        saved = source.values[self._name][GROUPS]
        groups = [decode(group, None, source) for group in saved]
        options = self._options_by_parameter(groups, strict)
        own = self._own()
        packed = own.state_dict()["param_groups"]
        parameters = [each for group in own.param_groups for each in group["params"]]
        for group, given in zip(packed, own.param_groups, strict=True):
            group.update(_options_of(given, options, self._pieces))
        state = {number: self._state_of(each, source) for number, each in enumerate(parameters)}
        state = {number: each for number, each in state.items() if each}
        return partial(self._load, {"state": state, "param_groups": packed}, options)

    def _load(self, state: dict[str, Any], options: dict[str, dict[str, Any]]) -> None:
        own = self._own()
        load = getattr(own, "_adopt", own.load_state_dict)  # torch's does not copy either
        load(state)
        if own is not self._optimizer:
            for given in self._optimizer.param_groups:
                given.update(_options_of(given, options, self._pieces))

    def _own(self) -> Optimizer:
        """Return the optimizer that has this rank's state."""
        if isinstance(self._optimizer, DistributedOptimizer):
            local: Optimizer = self._optimizer.local
            return local
        return self._optimizer

    def _state_of(self, parameter: Tensor, source: Source) -> dict[str, Any]:
        key, piece = self._piece(parameter)
        prefix = f"{self._name}/state/{key}/"
        plain = self._plain_state(key, piece, source.values.get(prefix[:-1], {}))
        if plain is None:
            return {}
        state = {kind: decode(value, None, source) for kind, value in plain.items()}
        for path in source.names(prefix):
            kind = path[len(prefix) :]
            if kind not in state and "/" not in kind:
                dtype = source.kind(path)[0]
                values = empty_apart(_framework(parameter), tuple(parameter.shape), dtype)
                source.read(path, ShardedTensor(values, piece))
                state[kind] = values
        return state

    def _plain_state(self, key: str, piece: Piece, kept: dict[str, Any]) -> dict[str, Any] | None:
        """Return the state of a parameter that is not cut; None for an empty piece, which needs
        none.

        Raises CheckpointError if the state was kept by pieces, and this rank's is a different one.
        """
        by_label = pieces_in(kept)
        if by_label is None:
            if piece.is_whole or all(map(is_number, kept.values())):
                return kept
            by_label = {}
        if piece.label in by_label:
            found: dict[str, Any] = by_label[piece.label]
            return found
        if not piece.size and not piece.is_whole:
            return None
        raise CheckpointError(
            f"{self._name!r} has state of {key!r} that cannot be cut, as scales of blocks: it "
            f"belongs to elements {', '.join(by_label) or 'of the whole parameter'}, and this rank "
            f"has {piece.label}. Load it with as many ranks as saved it and the same wrapper and "
            f"layouts, or leave {self._name!r} out of the state, so that it begins anew"
        )

    def _piece(self, parameter: Tensor) -> tuple[str, Piece]:
        try:
            return self._pieces[id(parameter)]
        except KeyError:
            raise ConfigError(
                f"{self._name!r} has a parameter of shape {tuple(parameter.shape)} that is of no "
                f"model in the state: keep the model together with its optimizer"
            ) from None

    def _packed_groups(self, contents: Contents) -> list[Any]:
        packed = []
        for number, group in enumerate(self._optimizer.param_groups):
            names = [self._piece(parameter)[0] for parameter in group["params"]]
            path = f"{self._name}/param_groups/{number}"
            packed.append(encode({**group, "params": names}, path, contents.tensors))
        return packed

    def _options_by_parameter(
        self, groups: list[dict[str, Any]], strict: bool
    ) -> dict[str, dict[str, Any]]:
        options = {name: group for group in groups for name in group["params"]}
        wanted = [self._piece(p)[0] for g in self._optimizer.param_groups for p in g["params"]]
        missing = [name for name in wanted if name not in options]
        if missing and strict:
            raise CheckpointError(
                f"{self._name!r} was kept without the parameter {missing[0]!r}, and {len(missing)} "
                f"in all: build the optimizer for the same parameters"
            )
        return options


def _check_distinct(name: str, optimizer: Optimizer, pieces: Pieces) -> None:
    owners: dict[str, int] = {}
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        key = pieces[id(parameter)][0] if id(parameter) in pieces else ""
        if key and owners.setdefault(key, id(parameter)) != id(parameter):
            raise ConfigError(
                f"{name!r} has parameters of several models, two of which have the name {key!r}, "
                f"by which their state is kept: keep the models as one, such as a ModuleList of "
                f"them, or give each an optimizer of its own"
            )


def settle(things: Iterable[object]) -> None:
    """Let optimizers among these decide which rank has what of their parameters, before state is
    loaded. All ranks call it.

    Raises ConfigError on all ranks for those that cannot step on parts.
    """
    for optimizer in things:
        if is_optimizer(optimizer):
            groups = getattr(optimizer, "param_groups", ())
            for parameter in [each for group in groups for each in group["params"]][:1]:
                port.framework_of(parameter).settle(optimizer)


def is_optimizer(thing: object) -> bool:
    """Return whether the object has the attributes of an optimizer."""
    return all(hasattr(thing, each) for each in ("param_groups", "state", "load_state_dict"))


def is_cut(kind: str, value: Any, shape: Sequence[int]) -> bool:
    """Return whether state has the shape of its parameter, by the rule of torch's optimizers.

    When these load, "step" is a number even if its parameter is a scalar.
    """
    is_plain = kind != "step" and is_array(value) and not is_subclass(value)
    return is_plain and tuple(value.shape) == tuple(shape)


def is_common(kind: str, value: Any) -> bool:
    """Return whether it is a number, which all pieces of a parameter have in common."""
    if is_array(value):
        return not value.shape or (kind == "step" and math.prod(value.shape) == 1)
    return not isinstance(value, list | tuple | Mapping)


def _options_of(
    group: Mapping[str, Any], options: Mapping[str, dict[str, Any]], pieces: Pieces
) -> dict[str, Any]:
    names = [pieces[id(each)][0] for each in group["params"]]
    found = next((options[name] for name in names if name in options), {})
    return {key: value for key, value in found.items() if key != "params"}


def _framework(parameter: Tensor) -> str:
    return framework_of(parameter)
