"""Assigns each parameter the rank that steps it for all that have the same of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from torsh_runtime.comm.agreement import Attempt, agree, agree_in_turn
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, Tensor
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.parallel.agreement import SAME_MODEL, digest
from torsh_runtime.parallel.broadcasting import broadcast_all
from torsh_runtime.parallel.fsdp.sharding import shardings_of
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.replicas import Replicas

_NAME = "DistributedOptimizer"
_UNLIKE = (
    "One rank steps a parameter for all that have it: average gradients first, as "
    "DistributedDataParallel does, and pass all ranks the same parameters. If ranks have parts of "
    "the model, as of experts, pass model=model and process_group=mesh['dp'] or mesh['dp', 'cp']"
)


class Ownership:
    """Assigns owners to an optimizer's parameters. Owners are numbered within the group that has
    the same.

    Attributes: group (all these ranks).
    """

    def __init__(self, process_group: Any, model: Module | None) -> None:
        """Create an ownership without parameters. See DistributedOptimizer for the arguments."""
        self._names: dict[int, str] = {}
        self._replicas = None if model is None else self._told_by(model, process_group)
        self.group = self._replicas.group if self._replicas else group_of(process_group)
        self._owners: dict[int, int] = {}
        self._parameters: list[Any] = []
        self._loads: dict[ProcessGroup, Counter[int]] = defaultdict(Counter)
        """Numbers of elements of each group's parameters, by rank."""
        self._has_compared = False

    def _told_by(self, model: Module, process_group: Any) -> Replicas:
        if shardings_of(model):
            raise ConfigError(
                "DistributedOptimizer: a FullyShardedDataParallel in the model has spread the "
                "parameters over the ranks already: give it the framework's own optimizer"
            )
        named = all_parameters(model)
        self._names = {id(parameter): name for name, parameter in named}
        return Replicas(model, process_group)

    def group_of(self, parameter: Tensor) -> ProcessGroup:
        """Return the ranks that have the same of the parameter."""
        return self.group if self._replicas is None else self._replicas.of(parameter)

    def of(self, parameter: Tensor) -> int:
        """Return the rank that steps the parameter."""
        return self._owners[id(parameter)]

    def is_own(self, parameter: Tensor) -> bool:
        """Return whether this rank steps the parameter."""
        return self.of(parameter) == self.group_of(parameter).rank

    @property
    def has_parts(self) -> bool:
        """Return whether some parameters are the same on fewer ranks than the group has."""
        return any(self.group_of(each) is not self.group for each in self._parameters)

    def add(self, parameters: Sequence[Any], asked_by: str) -> None:
        """Choose owners: the largest first, each to who has least. Raises ConfigError on all
        ranks, where the model is known, if they have other parameters than each other or than
        the model."""
        if self._replicas is not None:
            self._check_known(self._replicas, parameters, asked_by)
        largest_first = sorted(parameters, key=_size, reverse=True)
        # What fewer ranks have comes last: it makes no difference to what all of them have to know.
        for parameter in sorted(largest_first, key=lambda each: self._is_of_fewer(each)):
            group = self.group_of(parameter)
            rank = min(group.ranks, key=lambda rank: self._load(group, rank))
            self._owners[id(parameter)] = group.ranks.index(rank)
            self._loads[group][rank] += _size(parameter)
        self._parameters += parameters
        self._has_compared = False

    def _is_of_fewer(self, parameter: Tensor) -> bool:
        return self.group_of(parameter) is not self.group

    def _load(self, group: ProcessGroup, rank: int) -> int:
        return sum(self._loads[each][rank] for each in {self.group, group})

    def _check_known(self, replicas: Replicas, parameters: Sequence[Any], asked_by: str) -> None:
        names = [self._names.get(id(each), "") for each in parameters]
        with Attempt() as attempt:
            if "" in names:
                at = names.index("")
                raise ConfigError(
                    f"{_NAME}: parameter {at}, of shape {tuple(parameters[at].shape)}, is none of "
                    f"the model's: pass the model that has all of them"
                )
        told = {"optimizer": asked_by, "parameters": names, **replicas.told(with_all=False)}
        agree(replicas.group, _NAME, told, attempt.error, SAME_MODEL)

    def send(self) -> None:
        """Give everyone what its owner has of each parameter."""
        broadcast_all((self.group_of(each), self.of(each), each) for each in self._parameters)

    def check_same(self) -> None:
        """Raise ConfigError on all ranks of the group unless all that have a parameter have the
        same of it, and the same gradient. Only the first call compares, until there are more
        parameters."""
        if self._has_compared or self.group.world_size == 1:
            return
        self._has_compared = True
        fewer = dict.fromkeys(map(self.group_of, self._parameters))
        told = {group: {"parameters": self._lines(group)} for group in (self.group, *fewer)}
        with Attempt() as attempt:
            agree_in_turn(told, _NAME, advice=_UNLIKE)
        if len(told) > 1:  # who has other parts has to hear of it, too
            agree(self.group, _NAME, problem=attempt.error)
        elif attempt.error is not None:
            raise attempt.error

    def _lines(self, group: ProcessGroup) -> list[str]:
        """Return the lines that must be equal on the ranks of a group."""
        named = [(n, p) for n, p in enumerate(self._parameters) if self.group_of(p) is group]
        return [f"{len(named)} parameters", *(line for each in named for line in _marks(*each))]


def _size(parameter: Tensor) -> int:
    size = parameter.numel()
    return int(size)


def _marks(number: int, parameter: Tensor) -> list[str]:
    """Return the lines about a parameter in which ranks may differ."""
    gradient, name = parameter.grad, f"parameter {number}"
    is_dense = gradient is not None and not getattr(gradient, "is_sparse", False)
    return [
        f"{name} of shape {tuple(parameter.shape)} and dtype {parameter.dtype}",
        f"{name} with values of checksum {digest(parameter.data):08x}",
        f"{name} with a gradient of checksum {digest(gradient.data):08x}"
        if is_dense
        else f"{name} without a gradient to compare",
    ]
