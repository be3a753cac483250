"""Defines the base of the layers of which each rank has a part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torsh_runtime.comm.agreement import Attempt, agree
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, Tensor, framework_of
from torsh_runtime.framework.functional import Functional
from torsh_runtime.layout import Shard
from torsh_runtime.parallel import regions
from torsh_runtime.parallel.agreement import SAME_VALUES, values_told
from torsh_runtime.parallel.operations import is_recorded
from torsh_runtime.parallel.parts_of_state import are_meant
from torsh_runtime.parallel.tensor.axis import Axis, axis_of
from torsh_runtime.parallel.tensor.kits import layers_of
from torsh_runtime.parallel.tensor.parts import (
    Layouts,
    keep_part,
    layouts,
)

_STATE_OF_PARTS = (
    "the state of a model has this rank's part of {!r} only, which is not to be taken for a whole "
    "one: take whole ones with tr.whole_state_dict(model), on all ranks, or save with a "
    "tr.checkpoint.Checkpointer; the parts are in dict(model.named_parameters())"
)


def plain_kind(kinds: Mapping[type, type[Layer]], module: Module) -> Any:
    """Return the class that a module is an instance of, among the framework's that an entry is
    for."""
    return next((kind for kind in kinds if isinstance(module, kind)), None)


def unfit(where: str, module: Module, entry: Any, kinds: Mapping[type, type[Layer]]) -> ConfigError:
    """Return the error for a module that an entry is not for."""
    kind, found = type(module).__name__, plain_kind(kinds, module)
    if found is not None and not isinstance(module, Layer):
        return ConfigError(
            f"{where!r} is a {kind} with a forward() of its own, which would not know that it has "
            f"a part: use a plain {found.__name__}"
        )
    if not kinds:
        return ConfigError(f"{where!r} is a {kind}, and {type(entry).__name__}() is for torch's")
    names = ", ".join(each.__name__ for each in kinds)
    return ConfigError(
        f"{where!r} is a {kind}, and {type(entry).__name__}() is for {names}{_instead(module)}"
    )


def _instead(module: Module) -> str:
    """Suggest entries that would fit a module of torch."""
    if not hasattr(module, "register_parameter") or isinstance(module, Layer):
        return ""
    own = dict(module.named_parameters())
    if any(each.ndim > 1 for each in own.values()):
        return (
            f": if it computes a part of a sum from parts of {', '.join(own)}, say Summed() of it, "
            f"and of these Cut() or Shared()"
        )
    return ": if each rank uses it on its own heads or tokens, say Part(dim) or Shared() of it"


class Layer:
    """The base of all layers that are cut along an axis.

    Attributes: axis, entry (of the plan), where (its name, for errors), parameter_layouts (how its
    own parameters that are cut lie on the mesh, by name).
    """

    framework: ClassVar[str]
    functional: ClassVar[Functional]
    """The framework's functions."""
    compare: ClassVar[Any]
    """check_same_input() of its tensors."""
    added: ClassVar[Any]
    """A sum that nobody else has, and a bias: both together, in place where that can be."""
    deferred: ClassVar[Any] = None
    """Returns of a tensor and a weight what defers the weight's gradient, as overlap.Deferred, or
    None."""
    communicates_in_backward = True
    """Read by DistributedDataParallel: the backward pass calls collectives."""
    output_dim: ClassVar[int] = 0
    """Dimension of a linear layer's weight along which its output features are placed."""
    axis: Axis
    where: str
    parameter_layouts: Layouts

    # What the framework's class has

    __call__: Callable[..., Any]
    modules: Callable[..., Iterator[Any]]
    training: bool
    weight: Any
    _parameters: dict[str, Any]
    if TYPE_CHECKING:

        def __init__(self, *sizes: int | None, dtype: Any = None) -> None: ...

        def parameters(self, recurse: bool = True) -> Iterator[Any]: ...

        def named_parameters(
            self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
        ) -> Iterator[tuple[str, Any]]: ...

        def named_modules(
            self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True
        ) -> Iterator[tuple[str, Any]]: ...

    def __new__(cls, *arguments: Any, framework: str | None = None, **named: Any) -> Self:
        """Create a layer of one framework. See layers_of()."""
        is_abstract = not hasattr(cls, "functional")
        kind = getattr(layers_of(framework), cls.__name__) if is_abstract else cls
        made: Self = object.__new__(kind)
        return made

    @classmethod
    def shards(cls, plain: Any, entry: Any, axis: Axis) -> dict[str, Shard]:
        """Return how an ordinary layer's own parameters are to be cut. Those that are not named
        stay whole. Raises ConfigError if they cannot be cut."""
        return {}

    def become(self, entry: Any, axis: Axis, where: str, lie: Layouts) -> None:
        """Become what the entry says, after the parameters have been replaced by their parts."""
        self.entry, self.axis, self.parameter_layouts = entry, axis, lie
        self.where = where or type(self).__name__

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """Return the state as any layer does, with whole parameters, unless parts are requested."""
        found = super().state_dict(*arguments, **named)  # type: ignore[misc]
        if self.parameter_layouts and self.axis.size > 1 and not are_meant():
            self._put_whole(found, *arguments[1:], **named)
        return found

    def _put_whole(self, state: Any, *arguments: Any, **named: Any) -> None:
        """Raise ConfigError, unless a framework's layers put whole parameters into the state."""
        raise ConfigError(_STATE_OF_PARTS.format(self.where))

    @property
    def mesh_coordinate(self) -> dict[str, int]:
        """Return this rank's position along the axis."""
        return {self.axis.name: self.axis.index}

    @property
    def parts_group(self) -> ProcessGroup | None:
        """Return the ranks that have the other parts of its parameters, if any is cut."""
        return self.axis.group if self.parameter_layouts else None

    def _divide(self, entry: Any, mesh: Any) -> None:
        """Become this rank's part of a new layer, which all ranks have made whole."""
        axis, where = axis_of(mesh), type(self).__name__
        named = [*self.named_parameters(recurse=False)]
        said, lie = f"{entry} of {framework_of(self).name}", Layouts()
        said += "".join(f", {name} of shape {tuple(each.shape)}" for name, each in named)
        with Attempt() as attempt:
            lie = layouts(self, self.shards(self, entry, axis), axis)
        told = {"options": [said], "values": values_told(named)}
        agree(axis.group, where, told, attempt.error, SAME_VALUES)
        for name, layout in lie.items():
            keep_part(getattr(self, name), layout, axis, name)
        self.become(entry, axis, where, lie)

    def _check(self, tensor: Tensor, size: int, what: str) -> None:
        shape = tensor.shape
        if not shape or shape[-1] != size:
            raise ConfigError(
                f"{self.where}: an input of shape {tuple(shape)} came to rank "
                f"{self.axis.index} of the axis {self.axis.name!r}, where (…, {size}) was "
                f"expected: {what}"
            )

    def _entered(self, tensor: Tensor, sequence_dim: int | None, deferred: Any = None) -> Any:
        """Return the tensor as each rank may use it in its own way."""
        if sequence_dim is None:
            self._compare_first(tensor)
        return self.axis.enter(tensor, self.axis.group, sequence_dim, deferred)

    def _compare_first(self, tensor: Tensor) -> None:
        """Compare the input of the axis's first layer between ranks, if it is data, now and then.
        Raises ConfigError on all of them if it differs."""
        is_traced, enter = regions.is_traced(), self.axis.enter  # a graph finds out when it runs
        if self.axis.size == 1 or (not is_traced and not enter.may_compare(self.where)):
            return
        is_data = "int" in str(getattr(tensor, "dtype", "a list of int"))
        if not is_data:
            parameter = next(iter(self.parameters()))
            if not is_recorded(parameter):
                return  # what has been computed cannot be told from data
            is_data = not tensor.requires_grad
        if not is_traced and not enter.is_due(self.where):
            return
        if is_data:
            self.compare(tensor, self.axis, self.where)

    def _summed(self, tensor: Tensor, sequence_dim: int | None) -> Any:
        """Return the sum of what the ranks computed, whose memory is reused; or this rank's part
        of it."""
        group = self.axis.group
        if sequence_dim is None:
            return regions.reduce(tensor, group, overwrites=True)
        length = self._equal_part(tensor, sequence_dim)
        return regions.reduce_scatter(tensor, group, sequence_dim, [length] * group.world_size)

    def _equal_part(self, tensor: Tensor, dim: int) -> int:
        """Return each rank's size along a dimension. Raises ConfigError if the parts would be
        unequal."""
        length, rest = divmod(int(tensor.shape[dim]), self.axis.size)
        if rest:
            raise ConfigError(
                f"{self.where}: dimension {dim} of {tuple(tensor.shape)} has to be cut into "
                f"{self.axis.size} equal parts: pad the sequences"
            )
        return length
