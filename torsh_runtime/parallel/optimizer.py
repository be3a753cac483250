"""An optimizer whose state is spread over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import count
from typing import Any

from torsh_runtime.comm.objects import gather_object
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.parallel.ownership import Ownership

_ANY_MESH = (
    "keep model, optimizer and mesh together in a tr.checkpoint.Checkpointer, which any mesh reads"
)


class DistributedOptimizer:
    """Wraps an optimizer so that each rank keeps the state of a part of the parameters.

    Each rank steps these and sends them to the others (ZeRO stage 1: Rajbhandari et al., SC 2020),
    as torch's ZeroRedundancyOptimizer. It is an optimizer of the framework itself, so schedules
    take it. Gradients have to be the same on all ranks, as DistributedDataParallel leaves them. If
    ranks have parts of the model, as of experts, it takes the model and the mesh's axes along which
    batches differ as well: `model=model, process_group=mesh["dp", "cp"]`.

    Attributes:
        local: The optimizer of this rank's parameters.
        param_groups: The groups with all parameters.

    Example:
        ```python
        optimizer = tr.DistributedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        loss(model(batch)).backward()
        optimizer.step()
        ```
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
        model: Module | None = None,
        **defaults: Any,
    ) -> None:
        """Create the optimizer. All ranks pass the same parameters, or groups of them, in order.

        Args:
            params: The parameters, or groups of them as dicts.
            optimizer_class: A class of optimizers of torch or of torsh_runtime.optim.
            process_group: The ranks, as DistributedDataParallel takes them.
            model: The model of the parameters, wrapped or not. Its layouts (parallel/layouts.py)
                say which ranks have the same part of each parameter, and these share the state of
                that one. All ranks then create the optimizer at the same time. None: all ranks have
                the same.
            **defaults: Options of `optimizer_class`, such as lr.

        Raises:
            ConfigError: On all ranks for models or parameters that differ, a process_group that
                does not tell which ranks have the same, a model that a FullyShardedDataParallel
                has sharded, and an optimizer that changes a parameter by others' gradients as well.
            TypeError: If `optimizer_class` is no class of optimizers.
        """
        whole = optimizer_class(params, **defaults)
        super().__init__(whole.param_groups, whole.defaults)  # type: ignore[call-arg]
        self._owners = Ownership(process_group, model)
        self._owners.add(self._everything(), getattr(optimizer_class, "__name__", ""))
        self._group = self._owners.group
        if self._group.world_size > 1:
            framework_of(self._everything()[0]).check_spread(whole, "DistributedOptimizer")
        self.local = optimizer_class(list(map(self._part, self.param_groups)), **defaults)
        self.local.all_param_groups = self.param_groups  # of which it has this rank's

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Train the parameters of `param_group` as well; all ranks pass the same.

        Raises:
            ConfigError: On all ranks if these differ.
        """
        super().add_param_group(param_group)  # type: ignore[misc]
        if hasattr(self, "local"):
            added = self.param_groups[-1]["params"]
            self._owners.add(added, "add_param_group()")
            self.local.add_param_group(self._part(self.param_groups[-1]))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step this rank's own parameters, get the others', and return what the closure returned.

        Args:
            closure: A function that computes the loss and the gradients, or None.

        Raises:
            ConfigError: From the first step, on all ranks, if parameters or gradients are not the
                same on all. Nothing has changed then.
            CommError: If the exchange among the ranks fails.

        Example:
            ```python
            loss(model(batch)).backward()
            optimizer.step()
            optimizer.zero_grad()
            ```
        """
        self._pass_options_on()
        if closure is None:
            self._owners.check_same()
            loss = self.local.step()
        else:
            loss = self.local.step(partial(self._checked, closure, count()))
        self._take_options_back()
        self._owners.send()
        return loss

    def _checked(self, closure: Callable[[], Any], calls: Iterator[int]) -> Any:
        if next(calls):  # the optimizer has changed this rank's own parameters since the last call
            self._owners.send()
        loss = closure()
        self._owners.check_same()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the state, and the options. gather_state_dict() returns all
        of it."""
        self._pass_options_on()
        return {
            "local": self.local.state_dict(),
            "world_size": self._group.world_size,
            "parameters": self._own_parameters(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what state_dict() or gather_state_dict() returned.

        Args:
            state: What state_dict() returned on this rank of the same number of ranks, or
                gather_state_dict() on a rank of any number.

        Raises:
            ConfigError: If it was a different number of ranks, or of other parameters or parts.

        Example:
            ```python
            optimizer.load_state_dict(torch.load("optimizer.pt"))
            ```
        """
        if "local" in state:
            self._load_own(state)
        else:
            self._load_whole(state)

    def gather_state_dict(self, dst: int = 0) -> dict[str, Any] | None:
        """Return on rank `dst` the state of all parameters, as the optimizer alone would have it.

        The others get None. All ranks call it.

        Args:
            dst: The rank in the optimizer's group.

        Raises:
            ConfigError: For a group of torch's, which cannot move objects of this library (pass
                process_group one of torsh_runtime's), and if ranks have parts, as of experts.
            CommError: If the exchange among the ranks fails.

        Example:
            ```python
            state = optimizer.gather_state_dict(dst=0)
            if state is not None:
                torch.save(state, "optimizer.pt")
            ```
        """
        self._check_whole("gather_state_dict()")
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
        own = self._own_parameters()
        kept = state.get("parameters", own)  # which earlier versions did not keep
        if kept != own:
            raise ConfigError(
                f"the optimizer's state is of other parameters than this rank steps, {kept} and "
                f"not {own}: {_ANY_MESH}"
            )
        self.local.load_state_dict(state["local"])
        self._take_options_back()

    def _own_parameters(self) -> list[str]:
        """Return the parameters that this rank has state of, and the ranks that have the same of
        each."""
        owners, found = self._owners, []
        for number, each in enumerate(self._everything()):
            if owners.is_own(each):
                ranks = ", ".join(map(str, owners.group_of(each).ranks))
                found.append(f"{number} of shape {tuple(each.shape)} of ranks {ranks}")
        return found

    def _check_whole(self, what: str) -> None:
        if self._owners.has_parts:
            raise ConfigError(
                f"DistributedOptimizer: {what} is for parameters that all ranks of the group have "
                f"whole, and of some they have parts, as of experts: {_ANY_MESH}"
            )

    def _load_whole(self, state: dict[str, Any]) -> None:
        self._check_whole("the state of one process")
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
        """Pass on the options that schedules and users have changed."""
        for own, group in zip(self.local.param_groups, self.param_groups, strict=True):
            own.update({key: value for key, value in group.items() if key != "params"})

    def _take_options_back(self) -> None:
        """Take back the options that the optimizer itself has changed."""
        for own, group in zip(self.local.param_groups, self.param_groups, strict=True):
            group.update({key: value for key, value in own.items() if key != "params"})

    def _numbers(self) -> list[dict[int, int]]:
        """Return for each rank a map from its own numbers of its parameters to those among all."""
        found: list[dict[int, int]] = [{} for _ in range(self._group.world_size)]
        for whole, parameter in enumerate(self._everything()):
            own = found[self._owners.of(parameter)]
            own[len(own)] = whole
        return found

    def _everything(self) -> list[Any]:
        return [each for group in self.param_groups for each in group["params"]]

    def _packed_groups(self) -> list[dict[str, Any]]:
        groups, start = [], 0
        for group in self.param_groups:
            options = {key: value for key, value in group.items() if key != "params"}
            end = start + len(group["params"])
            groups.append({**options, "params": list(range(start, end))})
            start = end
        return groups

    def _part(self, group: dict[str, Any]) -> dict[str, Any]:
        """Return the group with only this rank's own parameters."""
        return {**group, "params": [*filter(self._owners.is_own, group["params"])]}


def _base_of(optimizer_class: type) -> type:
    """Return the framework's class of optimizers. Raises TypeError for other classes."""
    for base in getattr(optimizer_class, "__mro__", ()):
        if base.__name__ == "Optimizer":
            found: type = base
            return found
    raise TypeError(f"{optimizer_class!r} is no class of optimizers, such as torch.optim.AdamW")


@cache
def _class_around(base: type) -> type[DistributedOptimizer]:
    name = DistributedOptimizer.__name__
    return type(name, (DistributedOptimizer, base), {"__module__": __name__})
