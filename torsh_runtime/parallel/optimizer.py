"""An optimizer whose state is spread over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.comm.objects import gather_object
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.groups import group_of


class DistributedOptimizer:
    """An optimizer of which each rank keeps the state of a part of the parameters, steps those, and
    sends them to the others (ZeRO stage 1: Rajbhandari et al., SC 2020). As torch's
    ZeroRedundancyOptimizer.

        optimizer = tr.DistributedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

    It is an optimizer of the framework itself, so schedules take it. Gradients have to be the same
    on all ranks, as DistributedDataParallel leaves them.
    """

    param_groups: list[dict[str, Any]]

    def __new__(cls, params: Any, optimizer_class: type, **named: Any) -> DistributedOptimizer:
        if cls is DistributedOptimizer:
            cls = _class_around(_base_of(optimizer_class))
        return super().__new__(cls)

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: Callable[..., Any],
        *,
        process_group: Any = None,
        **defaults: Any,
    ) -> None:
        """All ranks pass the same parameters, or groups of them, in the same order."""
        whole = optimizer_class(params, **defaults)
        super().__init__(whole.param_groups, whole.defaults)  # type: ignore[call-arg]
        self._group: ProcessGroup = group_of(process_group)
        self._owners = _owners(self.param_groups, self._group.world_size)
        self.local = optimizer_class(list(map(self._part, self.param_groups)), **defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train these parameters as well; all ranks pass the same."""
        super().add_param_group(param_group)  # type: ignore[misc]
        if hasattr(self, "local"):
            self._owners = _owners(self.param_groups, self._group.world_size, self._owners)
            self.local.add_param_group(self._part(self.param_groups[-1]))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step this rank's own parameters and get the others'. What the closure returned."""
        self._pass_options_on()
        loss = self.local.step() if closure is None else self.local.step(closure)
        self._take_options_back()
        works = [
            self._group.broadcast(parameter.data, self._owners[id(parameter)], async_op=True)
            for group in self.param_groups
            for parameter in group["params"]
        ]
        for work in works:
            work.wait()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state, and the options. For all of it see gather_state_dict()."""
        self._pass_options_on()
        return {"local": self.local.state_dict(), "world_size": self._group.world_size}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what state_dict() gave on this rank of as many, or gather_state_dict() on one of any
        number. ConfigError if it was another number of ranks."""
        if "local" in state:
            self._load_own(state)
        else:
            self._load_whole(state)

    def gather_state_dict(self, dst: int = 0) -> dict[str, Any] | None:
        """On rank dst the state of all parameters, as the optimizer alone would have it; None on
        the others. All ranks call it. ConfigError for a group of torch's, which moves no objects
        of ours: pass process_group one of torsh_runtime's."""
        parts: list[Any] | None = [None] * self._group.world_size
        own = self.local.state_dict()
        if self._group.rank != dst:
            parts = None
        gather_object(own["state"], parts, group=self._group, group_dst=dst)
        if parts is None:
            return None
        numbers = self._numbers()
        state = {
            numbers[rank][number]: values
            for rank, part in enumerate(parts)
            for number, values in part.items()
        }
        return {"state": state, "param_groups": self._packed_groups()}

    def _load_own(self, state: dict[str, Any]) -> None:
        if state["world_size"] != self._group.world_size:
            raise ConfigError(
                f"the optimizer's state is one rank's of {state['world_size']}, and there are "
                f"{self._group.world_size}: save what gather_state_dict() gives"
            )
        self.local.load_state_dict(state["local"])
        self._take_options_back()

    def _load_whole(self, state: dict[str, Any]) -> None:
        own_numbers = self._numbers()[self._group.rank]
        packed = self.local.state_dict()["param_groups"]
        for own, saved, group in zip(packed, state["param_groups"], self.param_groups, strict=True):
            options = {key: value for key, value in saved.items() if key != "params"}
            own.update(options)
            group.update(options)
        mine = {
            number: state["state"][whole]
            for number, whole in own_numbers.items()
            if whole in state["state"]
        }
        self.local.load_state_dict({"state": mine, "param_groups": packed})

    def _pass_options_on(self) -> None:
        """What schedules and users have changed."""
        for own, group in zip(self.local.param_groups, self.param_groups, strict=True):
            own.update({key: value for key, value in group.items() if key != "params"})

    def _take_options_back(self) -> None:
        """What the optimizer itself has changed."""
        for own, group in zip(self.local.param_groups, self.param_groups, strict=True):
            group.update({key: value for key, value in own.items() if key != "params"})

    def _numbers(self) -> list[dict[int, int]]:
        """For each rank: its own numbering of its parameters, and that of all."""
        found: list[dict[int, int]] = [{} for _ in range(self._group.world_size)]
        everything = [each for group in self.param_groups for each in group["params"]]
        for whole, parameter in enumerate(everything):
            own = found[self._owners[id(parameter)]]
            own[len(own)] = whole
        return found

    def _packed_groups(self) -> list[dict[str, Any]]:
        groups, start = [], 0
        for group in self.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            end = start + len(group["params"])
            groups.append({**options, "params": list(range(start, end))})
            start = end
        return groups

    def _part(self, group: dict[str, Any]) -> dict[str, Any]:
        """The same with this rank's own parameters alone."""
        rank, owners = self._group.rank, self._owners
        return {**group, "params": [each for each in group["params"] if owners[id(each)] == rank]}


def _owners(
    groups: list[dict[str, Any]], ranks: int, known: Mapping[int, int] | None = None
) -> dict[int, int]:
    """The rank of each parameter, by id(): the known ones keep theirs, of the others the largest
    first, each to who has least."""
    loads = [0] * ranks
    owners = dict(known or {})
    everything = [parameter for group in groups for parameter in group["params"]]
    for parameter in everything:
        if id(parameter) in owners:
            loads[owners[id(parameter)]] += _size(parameter)
    new = [parameter for parameter in everything if id(parameter) not in owners]
    for parameter in sorted(new, key=_size, reverse=True):
        rank = loads.index(min(loads))
        owners[id(parameter)] = rank
        loads[rank] += _size(parameter)
    return owners


def _size(parameter: Any) -> int:
    size = parameter.numel()
    return int(size)


def _base_of(optimizer_class: type) -> type:
    """The framework's class of optimizers. TypeError for what is no such class."""
    for base in getattr(optimizer_class, "__mro__", ()):
        if base.__name__ == "Optimizer":
            found: type = base
            return found
    raise TypeError(f"{optimizer_class!r} is no class of optimizers, such as torch.optim.AdamW")


@cache
def _class_around(base: type) -> type[DistributedOptimizer]:
    name = DistributedOptimizer.__name__
    return type(name, (DistributedOptimizer, base), {"__module__": __name__})
