"""Modules of torch of any class, whose own forward() runs within what the plan's entry says."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.trees import leaves, mapped
from torsh_runtime.layout import Shard
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.tensor.axis import Axis
from torsh_runtime.parallel.tensor.cuts import sharded, unit_of
from torsh_runtime.parallel.tensor.kinds import StandIn, has_stand_in, replaced
from torsh_runtime.parallel.tensor.layer import Layer
from torsh_runtime.parallel.tensor.layers import RowParallelLinear
from torsh_runtime.parallel.tensor.parts import Layouts
from torsh_runtime.parallel.tensor.plan import Cut, Own, Part, Scatter, Shared, Summed, Whole
from torsh_runtime.parallel.tensor.streams import drawing_part


class AnyLayer(Layer):
    """A module with the forward() that it had. Before its class there is the model's own."""

    own: Own

    @classmethod
    def shards(cls, plain: Any, entry: Own, axis: Axis) -> dict[str, Shard]:
        found = {
            name: _shard(getattr(plain, name), each, axis)
            for name, each in entry.parameters.items()
            if isinstance(each, Cut)
        }
        if _has_groups(plain) and "weight" in found:
            _check_groups(plain, found["weight"])
        return found

    def become(self, entry: Own, axis: Axis, where: str, lie: Layouts) -> None:
        super().become(entry.entry, axis, where, lie)
        self.own = entry
        if _has_groups(self) and "weight" in lie:
            self.groups = len(self.weight) // _group_size(self)
        theirs: type = type(self).theirs  # type: ignore[attr-defined]
        self._has_stand_in = has_stand_in(theirs)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the module's own forward() with its shared parameters."""
        is_outside = self._is_outside()
        if is_outside:
            self._check_whole()
        shared = {} if is_outside else self._given()
        if regions.is_traced() and self._has_stand_in and [*shared] == [self]:
            forward: Any = type(self).theirs.forward  # type: ignore[attr-defined]
            return forward(StandIn(self, shared[self]), *inputs, **named)
        with replaced(shared) if shared else nullcontext():
            return super().forward(*inputs, **named)  # type: ignore[misc]

    summed_in: str | None = None
    """The module around it that computes a part of a sum."""
    _was_outside = False

    def _is_outside(self) -> bool:
        """Return whether something else calls it than the module in which it is a part of a sum:
        then all ranks use its parameters alike, and have whole gradients of them."""
        if self.summed_in is None or self.summed_in in self.axis.enter.summing:
            return False
        if not regions.is_traced():
            if torch._C._current_graph_task_id() != -1:  # a checkpoint calls it again
                return self._was_outside
            self._was_outside = True
        return True

    def _check_whole(self) -> None:
        """Raise ConfigError if it has a part of a parameter, of which the one who calls it does not
        know."""
        if self.parameter_layouts:
            raise ConfigError(
                f"{self.where!r} was called by something else than {self.summed_in!r}, which is "
                f"Summed(), and each rank has a part of its {', '.join(self.parameter_layouts)}: "
                f"leave {self.summed_in!r} out of the plan"
            )

    def _part(self, tensor: Any) -> Any:
        """Return this rank's part, along the entry's dimension, of a tensor that all ranks have."""
        length = self._equal_part(tensor, self.entry.dim)
        return regions.scatter(tensor, self.axis.group, self.entry.dim, [length] * self.axis.size)

    @property
    def _shares_all(self) -> bool:
        """Return whether all parameters at or below it are shared."""
        return isinstance(self.entry, Shared | Part)

    def _given(self) -> dict[Any, dict[str, Any]]:
        """Return the stand-ins for shared parameters, whose gradients are summed."""
        found: dict[Any, dict[str, Any]] = {}
        known: dict[int, Any] = {}
        is_traced = regions.is_traced()  # a graph with identities would be for one layer alone
        for module, name, parameter, entry in self._shared():
            given = None if is_traced else known.get(id(parameter))
            if given is None:
                copied = regions.copy(parameter, self.axis.group)
                given = copied / self.axis.size if entry.divided else copied
            if not is_traced:
                known[id(parameter)] = given
            found.setdefault(module, {})[name] = given
        return found

    def _shared(self) -> Iterator[tuple[Any, str, Any, Shared]]:
        told = self.own.parameters
        entry = self.entry if isinstance(self.entry, Shared) else Shared()
        for module in _without_layers(self) if self._shares_all else (self,):
            for name, parameter in module._parameters.items():
                each = told.get(name) if module is self else None
                if parameter is None or isinstance(each, Cut):
                    continue
                if each is not None or self._shares_all:
                    yield module, name, parameter, each or entry


class PartOfAny(AnyLayer):
    """Computes with this rank's part of the input."""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the module's own forward() with a part of the input, and gather its output if the
        entry says so."""
        with self._drawing(inputs, named):
            found = super().forward(*inputs, **named)
        if not self.entry.gather_output:
            return found
        return _of_first(found, lambda each: regions.gather(each, self.axis.group, self.entry.dim))

    def _drawing(self, inputs: Any, named: Any) -> AbstractContextManager[None]:
        """Return a block in which dropout draws for this rank's part."""
        if not self.training or not any(map(_drops, self.modules())):
            return nullcontext()
        tensor = next(each for each in leaves((inputs, named)) if isinstance(each, Tensor))
        return drawing_part(tensor, self.axis, self.entry.dim, self.entry.cuts)


class SummedLayer(AnyLayer):
    """Computes a part of a sum over ranks."""

    entry: Summed

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the module's own forward(), and sum its outputs over ranks."""
        dim = self.entry.sequence_dim
        inputs, named = self._all_in(inputs, named)
        with self._summing():
            found = super().forward(*inputs, **named)
        if regions.is_traced() or not self._is_known:
            self._check_rows()
        if dim is None:
            return _of_first(found, lambda each: regions.reduce(each, self.axis.group))
        return _of_first(found, lambda each: self._summed(each, dim))

    @contextmanager
    def _summing(self) -> Iterator[None]:
        """Tell the modules below that they compute a part of a sum in this block."""
        enter, around = self.axis.enter, self.axis.enter.summing
        enter.summing = (*around, self.where)
        try:
            yield
        finally:
            enter.summing = around

    def _all_in(self, inputs: Any, named: Any) -> Any:
        """Return the arguments, which each rank may use in its own way."""
        dim, names = self.entry.sequence_dim, self.entry.sequence_inputs
        gathered: list[Any] = []

        def gather(value: Any) -> Any:
            gathered.append(self._entered(value, dim))
            return gathered[-1]

        def enter(value: Any) -> Any:
            if not isinstance(value, Tensor) or any(value is each for each in gathered):
                return value
            return self._entered(value, None if names else dim)

        for name in names if dim is not None else ():
            inputs, named = on_argument(self, name, inputs, named, gather)
        return mapped(enter, (inputs, named))

    sums_parts = True
    """Tells that modules below it compute parts of a sum."""
    _is_known = False

    def _check_rows(self) -> None:
        """Raise ConfigError if forward() passes the weight of a Row layer around this, as fused
        kernels do."""
        if not regions.is_traced():  # a graph would be made anew for another value
            self._is_known = True
        for name, module in self.named_modules():
            if isinstance(module, RowParallelLinear) and not module.was_called:
                raise ConfigError(
                    f"{self.where}: the forward() of a {type(self).__name__} does not call its "
                    f"{name}, which would have summed over ranks: leave this module out of the plan"
                )


class ScatteredLayer(AnyLayer):
    """Takes a whole tensor, and continues with a part."""

    entry: Scatter

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the module's own forward() with a part of the input."""
        inputs, named = on_argument(self, "", inputs, named, self._part)
        return super().forward(*inputs, **named)


class WholeLayer(AnyLayer):
    """Computes with the whole sequence, as all ranks do."""

    entry: Whole

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the module's own forward() with the whole input, and return this rank's part of
        the output."""
        dim, group = self.entry.dim, self.axis.group
        inputs, named = on_argument(
            self, "", inputs, named, lambda each: regions.gather(each, group, dim)
        )
        found = super().forward(*inputs, **named)
        return _of_first(found, self._part)


def on_argument(
    module: Any, name: str, inputs: Any, named: Any, call: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return the arguments of a module's forward(), with the tensor of this name replaced by the
    result of `call`. The name "" means the first argument."""
    names = argument_names(type(module))
    found = name or names[0]
    if found in named:
        return inputs, _changed(named, found, call)
    place = names.index(found) if found in names else len(inputs)
    if place >= len(inputs):
        return inputs, named
    given = dict(enumerate(inputs))
    return tuple(_changed(given, place, call).values()), named


def _changed(given: dict[Any, Any], key: Any, call: Callable[[Any], Any]) -> dict[Any, Any]:
    is_tensor = isinstance(given[key], Tensor)
    return given | {key: call(given[key])} if is_tensor else given


def argument_names(kind: Any) -> list[str]:
    """Return the argument names of the forward() that a model's own class has."""
    parameters = inspect.signature(kind.theirs.forward).parameters
    return [name for name in parameters if name != "self"]


def _of_first(outputs: Any, call: Callable[[Any], Any]) -> Any:
    """Apply `call` to a tensor, or to the first one of several. Raises ConfigError if there is
    none."""
    if isinstance(outputs, Tensor):
        return call(outputs)
    if isinstance(outputs, tuple) and outputs and isinstance(outputs[0], Tensor):
        return type(outputs)((call(outputs[0]), *outputs[1:]))
    raise ConfigError(f"forward() returned a {type(outputs).__name__}, and no tensor")


def _shard(parameter: Any, entry: Cut, axis: Axis) -> Shard:
    dims = parameter.dim()
    if not -dims <= entry.dim < dims:
        raise ConfigError(f"it has no dimension {entry.dim}, of shape {tuple(parameter.shape)}")
    dim = entry.dim % dims
    size = parameter.shape[dim]
    return sharded(size, axis.size, unit_of(entry, size, axis.size), entry.sections, dim)


def _without_layers(module: Any) -> Iterator[Any]:
    """Yield a module, and those below it that are no layers with an entry of their own."""
    yield module
    for child in module.children():
        if not isinstance(child, Layer):
            yield from _without_layers(child)


def _has_groups(module: Any) -> bool:
    """Return whether it is a convolution whose channels belong to groups, such as a depthwise
    one."""
    return isinstance(module, nn.modules.conv._ConvNd) and module.groups > 1


def _group_size(module: Any) -> int:
    """Return how many of its weight's first indices one group has."""
    channels = int(module.in_channels if module.transposed else module.out_channels)
    return channels // int(module.groups)


def _check_groups(module: Any, shard: Shard) -> None:
    size = _group_size(module)
    if shard.dim or any(place % size for part in shard.parts for piece in part for place in piece):
        raise ConfigError(f"it is a convolution by groups: say Cut(0, unit={size}) of its weight")


def _drops(module: Any) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
