"""Keeps parameters equal that stages on different ranks share, such as those of an embedding and a
head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, Tensor, Values, framework_of
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.layout import Piece
from torsh_runtime.parallel.pipeline.lanes import Lanes
from torsh_runtime.parallel.pipeline.splitting import StageModule, stage_class
from torsh_runtime.parallel.pipeline.wire import exchange
from torsh_runtime.parallel.regions.arrays import copied, empty


class Shared(NamedTuple):
    """Describes one shared parameter."""

    parameter: Tensor
    ranks: tuple[int, ...]
    """Ranks of the pipeline that have it."""


def shared(stages: Sequence[Module], placement: Sequence[int]) -> list[Shared]:
    """Return the shared parameters of all stages, in the same order on all ranks.

    Parameters that are constant at present are included.
    """
    owners: dict[int, tuple[Any, dict[int, None]]] = {}
    for number, stage in enumerate(stages):
        for _, parameter in all_parameters(stage):
            _, ranks = owners.setdefault(id(parameter), (parameter, {}))
            ranks[placement[number]] = None
    return [Shared(p, tuple(sorted(ranks))) for p, ranks in owners.values() if len(ranks) > 1]


class Sharing:
    """Keeps this rank's shared parameters equal to those of other ranks."""

    def __init__(
        self, group: ProcessGroup, lanes: Lanes | None, parameters: Sequence[Shared], stage: Module
    ) -> None:
        """Prepare to share. lanes: used for values on GPUs. stage: all stages of this rank."""
        self._group, self._framework, self._stage = group, framework_of(stage), stage
        self._messages = lanes or group
        self._all = parameters
        self._parameters = [each for each in parameters if group.rank in each.ranks]

    def send_values(self) -> None:
        """Send the first rank's values to all ranks that have a parameter."""
        for parameter, ranks in self._parameters:
            values = parameter.data
            if self._group.rank != ranks[0]:
                values[...] = 0
            exchange(self._messages, ranks, values, _add)

    def earlier(self, stage: Module) -> frozenset[str]:
        """Return the names in a stage of its parameters that earlier ranks have as well."""
        own = {id(each) for each, ranks in self._parameters if ranks[0] < self._group.rank}
        named = stage.named_parameters(remove_duplicate=False)
        return frozenset(name for name, each in named if id(each) in own)

    def wanted(self) -> list[int]:
        """Return a number for each tied parameter of the model.

        1 if it is to have a gradient here, 2 if it is a constant, and 0 if this rank does not have
        it.
        """
        return [
            2 - parameter.requires_grad if self._group.rank in ranks else 0
            for parameter, ranks in self._all
        ]

    def begin(self) -> None:
        """Put aside what earlier steps have accumulated, which is a sum over ranks already."""
        self._before = []
        self._trained = [each for each in self._parameters if each.parameter.requires_grad]
        for parameter, _ in self._trained:
            there = parameter.grad  # in memory that wrappers may write to again
            self._before.append(None if there is None else copied(there.data))
            parameter.grad = None

    def add_gradients(self) -> None:
        """Sum the gradients since begin() over all ranks, and add them to the earlier ones."""
        held = self._held() if self._trained else {}
        for (parameter, ranks), before in zip(self._trained, self._before, strict=True):
            if parameter.grad is None:
                zeros = copied(parameter.data)
                zeros[...] = 0
                self._framework.set_gradient(parameter, zeros)
            values = parameter.grad.data
            if id(parameter) in held:
                self._add_parts(ranks, values, *held[id(parameter)])
            else:
                exchange(self._messages, ranks, values, _add)
            if before is not None:
                values += before

    def _held(self) -> dict[int, tuple[Piece, ProcessGroup]]:
        """Return this rank's piece, and its group, for parameters that wrappers have sharded, by
        id().
        """
        found: dict[int, tuple[Piece, ProcessGroup]] = {}
        for each in getattr(self._stage, "parallel_wrappers", ()):
            if hasattr(each, "sharded"):
                pieces = each.pieces()
                found |= {key: (pieces[key], group) for key, group in each.sharded().items()}
        return found

    def _add_parts(
        self, ranks: Sequence[int], values: Any, piece: Piece, group: ProcessGroup
    ) -> None:
        """Sum gradients where ranks have pieces, which other stages may have cut differently."""
        values = values.reshape(-1)
        whole = empty(values, (math.prod(piece.global_shape),))
        whole[...] = 0
        whole[piece.start : piece.end] = values
        group.all_reduce(whole)
        exchange(self._messages, ranks, whole, _add)
        values[...] = whole[piece.start : piece.end]


def _add(target: Values, source: Values) -> None:
    target += source


def check_wanted(group: ProcessGroup, wanted: NDArray[np.int64]) -> None:
    """Raise ConfigError if ranks want different things of a tied parameter.

    wanted: for each rank of the group a row of wanted().
    """
    for column in wanted.T:
        trained, constant = (
            ", ".join(map(group.called, np.flatnonzero(column == kind).tolist())) for kind in (1, 2)
        )
        if trained and constant:
            raise ConfigError(
                f"a parameter that several stages have is to be trained on {trained}, and is a "
                f"constant on {constant}: call requires_grad_() alike on all ranks that have it"
            )


def merged(stages: Mapping[int, Module], everyone: Sequence[Any]) -> Any:
    """Merge all of a rank's stages into one module, with parameters named as in the whole model.

    Stages that are no parts of one model are named as in Sequential(*everyone).
    """
    first, *others = stages.values()
    if hasattr(first, "merged_with"):  # they are parts of one model that are called as it is
        return first.merged_with(others) if others else first
    if not all(isinstance(stage, StageModule) for stage in stages.values()):
        named = {str(number): stage for number, stage in stages.items()}
        return stage_class(first)(named, _of_earlier(stages, everyone))
    if len(stages) == 1:
        return first
    layers: dict[str, Any] = {}
    tied: dict[str, Any] = {}
    for stage in stages.values():
        own: Any = stage  # a StageModule, which is a module only with its framework's class
        named = dict(stage.named_modules(remove_duplicate=False))
        parameters = dict(stage.named_parameters(remove_duplicate=False))
        layers |= {name: named[name] for name in own.layer_names}
        tied |= {name: parameters[name] for name in own.tied_names}
    kept = {name: each for name, each in tied.items() if _home(name) not in layers}
    return stage_class(first)(layers, kept)


def _of_earlier(stages: Mapping[int, Module], everyone: Sequence[Any]) -> dict[str, Any]:
    """Return parameters that earlier stages of other ranks have as well, by their names there."""
    first: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(everyone):
        for name, parameter in stage.named_parameters():
            first.setdefault(id(parameter), (number, f"{number}.{name}"))
    own = {id(p): p for stage in stages.values() for p in stage.parameters()}
    found = {first[key]: parameter for key, parameter in own.items()}
    return {name: p for (number, name), p in found.items() if number not in stages}


def _home(name: str) -> str:
    return name.rpartition(".")[0]
