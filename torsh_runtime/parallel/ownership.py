"""Which rank steps a parameter for all that have the same of it."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.models import all_parameters
from torsh_runtime.parallel.agreement import digest, texts_of_all
from torsh_runtime.parallel.fsdp.wrapper import wrappers_of
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.replicas import Replicas

_COMPARED = ("another shape or dtype", "other values", "another gradient")
"""What ranks may have of a parameter."""


class Ownership:
    """Of an optimizer's parameters. Owners are numbered within the group that has the same.

    Attributes: group (all these ranks).
    """

    def __init__(self, process_group: Any, model: Any) -> None:
        """See DistributedOptimizer."""
        self._names: dict[int, str] = {}
        self._replicas = None if model is None else self._told_by(model, process_group)
        self.group = self._replicas.group if self._replicas else group_of(process_group)
        self._owners: dict[int, int] = {}
        self._parameters: list[Any] = []
        self._loads: dict[ProcessGroup, Counter[int]] = defaultdict(Counter)
        """Numbers of elements of each group's parameters, by rank."""
        self._has_compared = False

    def _told_by(self, model: Any, process_group: Any) -> Replicas:
        if wrappers_of(model):
            raise ConfigError(
                "DistributedOptimizer: a FullyShardedDataParallel in the model has spread the "
                "parameters over the ranks already: give it the framework's own optimizer"
            )
        named = all_parameters(model)
        self._names = {id(parameter): name for name, parameter in named}
        return Replicas(model, process_group)

    def group_of(self, parameter: Any) -> ProcessGroup:
        """Who has the same of it."""
        return self.group if self._replicas is None else self._replicas.of(parameter)

    def of(self, parameter: Any) -> int:
        """Who steps it."""
        return self._owners[id(parameter)]

    def is_own(self, parameter: Any) -> bool:
        """Whether this rank does."""
        return self.of(parameter) == self.group_of(parameter).rank

    @property
    def has_parts(self) -> bool:
        """Whether some parameters are the same on fewer ranks than the group has."""
        return any(self.group_of(each) is not self.group for each in self._parameters)

    def add(self, parameters: Sequence[Any], asked_by: str) -> None:
        """Choose owners: the largest first, each to who has least. ConfigError on all ranks, where
        the model is known, if they have other parameters than each other or than the model."""
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

    def _is_of_fewer(self, parameter: Any) -> bool:
        return self.group_of(parameter) is not self.group

    def _load(self, group: ProcessGroup, rank: int) -> int:
        return sum(self._loads[each][rank] for each in {self.group, group})

    def _check_known(self, replicas: Replicas, parameters: Sequence[Any], asked_by: str) -> None:
        names = [self._names.get(id(each), "") for each in parameters]
        replicas.check_agreed({"DistributedOptimizer": asked_by, "parameters": names}, sends=False)
        if "" in names:
            at = names.index("")
            raise ConfigError(
                f"DistributedOptimizer: parameter {at}, of shape {tuple(parameters[at].shape)}, is "
                f"none of the model's: pass the model that has all of them"
            )

    def send(self) -> None:
        """Give everyone what its owner has of each parameter."""
        works = [
            self.group_of(each).broadcast(each.data, self.of(each), async_op=True)
            for each in self._parameters
        ]
        for work in works:
            work.wait()

    def check_same(self) -> None:
        """ConfigError on all ranks of the group unless all that have a parameter have the same of
        it, and the same gradient. It asks once, until there are more parameters."""
        if self._has_compared or self.group.world_size == 1:
            return
        self._has_compared = True
        groups = dict.fromkeys((self.group, *map(self.group_of, self._parameters)))
        said = "".join([*filter(None, map(self._difference, groups))][:1])
        told = [*filter(None, texts_of_all(self.group, said))]
        if told:
            raise ConfigError(f"DistributedOptimizer: {told[0]}")

    def _difference(self, group: ProcessGroup) -> str:
        """What the ranks of a group have that is not the same; "" if nothing is."""
        named = [(n, p) for n, p in enumerate(self._parameters) if self.group_of(p) is group]
        counts = group.all_gather_numbers(np.array([len(named)], np.int64))
        if (counts != counts[0]).any():
            return f"ranks have {', '.join(map(str, counts[:, 0]))} parameters: pass all the same"
        own = np.array([_marks(each) for _, each in named], np.int64).reshape(-1)
        told = group.all_gather_numbers(own)
        others, columns = np.nonzero(told != told[0])
        if not columns.size:
            return ""
        first = columns.min()
        number, parameter = named[first // len(_COMPARED)]
        who = ", ".join(str(group.ranks[each]) for each in others[columns == first])
        return (
            f"parameter {number}, of shape {tuple(parameter.shape)}, has "
            f"{_COMPARED[first % len(_COMPARED)]} on rank(s) {who} than on rank {group.ranks[0]}, "
            f"and one rank steps it for all: average gradients first, as DistributedDataParallel "
            f"does. If ranks have parts of the model, as of experts, pass model=model and "
            f"process_group=mesh['dp'] or mesh['dp', 'cp']"
        )


def _size(parameter: Any) -> int:
    size = parameter.numel()
    return int(size)


def _marks(parameter: Any) -> tuple[int, int, int]:
    """In which ranks' parameters may differ, in the order of _COMPARED."""
    gradient = parameter.grad
    if gradient is None or getattr(gradient, "is_sparse", False):
        found = -1
    else:
        found = digest(gradient.data)
    kind = zlib.crc32(f"{tuple(parameter.shape)} {parameter.dtype}".encode())
    return kind, digest(parameter.data), found
