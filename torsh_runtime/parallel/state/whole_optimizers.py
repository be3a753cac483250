"""Converts the whole state of an optimizer between torch's form, by the names of parameters, and
the one that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.state.contents import Contents, Source
from torsh_runtime.parallel.state.merging import GROUPS, pieces_in
from torsh_runtime.parallel.state.optimizers import is_common, is_cut
from torsh_runtime.parallel.state.plain import decode, encode, encode_number

STATE = "state"


def is_of_optimizer(value: object) -> bool:
    """Return whether it has the form of an optimizer's state_dict()."""
    return isinstance(value, Mapping) and value.keys() == {STATE, GROUPS}


def is_kept(value: object) -> bool:
    """Return whether a plain value is that of an optimizer that was kept."""
    return isinstance(value, Mapping) and value.keys() == {GROUPS}


def whole_state(part: str, source: Source, framework: str) -> dict[str, Any]:
    """Return the state of an optimizer that was kept under the name `part`, as torch's
    get_optimizer_state_dict() gives it: by names of parameters, with groups.

    Raises CheckpointError for state that belongs to pieces of parameters.
    """
    groups = [decode(each, None, source) for each in source.values[part][GROUPS]]
    names = dict.fromkeys(name for group in groups for name in group["params"])
    found = {name: _state_of(f"{part}/{STATE}/{name}", source, framework) for name in names}
    return {STATE: {name: each for name, each in found.items() if each}, GROUPS: groups}


def _state_of(path: str, source: Source, framework: str) -> dict[str, Any]:
    plain = source.values.get(path, {})
    if pieces_in(plain) is not None:
        raise CheckpointError(by_pieces(path))
    state = {kind: decode(value, None, source) for kind, value in plain.items()}
    for name in source.names(f"{path}/"):
        kind = name[len(path) + 1 :]
        if kind not in state and "/" not in kind:
            state[kind] = source.whole(name, framework)
    return state


def by_pieces(path: str) -> str:
    """Return why state of this name is never whole."""
    return (
        f"{path!r} is state that belongs to pieces of a parameter, as scales of blocks do, and is "
        f"never whole: keep the optimizer with a tr.checkpoint.Checkpointer"
    )


class WholeOptimizer:
    """Keeps the whole state of an optimizer, in torch's form, as if the optimizer were there."""

    def __init__(
        self, name: str, state: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Check the form. `shapes`: those of parameters, by name. Raises ConfigError if `state` is
        no state of an optimizer by names."""
        if not is_of_optimizer(state):
            raise ConfigError(
                f"{name!r} is no state of an optimizer: it must have {STATE!r} and {GROUPS!r}, "
                f"as get_optimizer_state_dict() and optimizer.state_dict() give them"
            )
        self._name, self._state, self._shapes = name, state, shapes

    def keep(self, contents: Contents) -> None:
        """Add the state to what is kept."""
        for key, state in self._state[STATE].items():
            if key in self._shapes:
                name = f"{self._name}/{STATE}/{key}"
                self._keep_state(name, self._shapes[key], state, contents)
        contents.values[self._name] = {
            GROUPS: [
                encode(group, f"{self._name}/{GROUPS}/{number}", contents.tensors)
                for number, group in enumerate(self._state[GROUPS])
            ]
        }

    def _keep_state(
        self,
        path: str,
        shape: tuple[int, ...],
        state: Mapping[str, Any],
        contents: Contents,
    ) -> None:
        cut = {
            key: value
            for key, value in state.items()
            if isinstance(value, ShardedTensor) or is_cut(key, value, shape)
        }
        for key, value in cut.items():
            contents.tensors[f"{path}/{key}"] = as_piece(value)
        plain = {
            key: (encode_number if is_common(key, value) else encode)(
                value, f"{path}/{key}", contents.tensors
            )
            for key, value in state.items()
            if key not in cut
        }
        if plain:
            contents.values[path] = plain


def as_piece(value: Any) -> ShardedTensor:
    """Return an array or tensor as the piece that it is of a tensor: all of it, or a part."""
    if isinstance(value, ShardedTensor):
        return value
    return ShardedTensor(value, Piece.whole(tuple(value.shape)))


def by_names(state: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Return the state of an optimizer by the names of its parameters.

    names: those of all parameters, in the optimizer's order; state that is by number, as
    optimizer.state_dict() has it, is by their places. Raises ConfigError if these are not as many.
    """
    numbers = [each for group in state[GROUPS] for each in group["params"]]
    if not numbers or not all(isinstance(each, int) for each in numbers):
        return state
    if len(numbers) != len(names):
        raise ConfigError(
            f"the state is of {len(numbers)} parameters by number, and this rank's optimizer has "
            f"{len(names)}: build it for the same parameters, or pass the state by names, as "
            f"get_optimizer_state_dict() gives it"
        )
    named = dict(zip(numbers, names, strict=True))
    groups = [{**each, "params": [named[n] for n in each["params"]]} for each in state[GROUPS]]
    return {STATE: {named[key]: each for key, each in state[STATE].items()}, GROUPS: groups}
