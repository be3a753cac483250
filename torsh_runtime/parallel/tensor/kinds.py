"""Chooses the class that a module of torch becomes, whatever its own is."""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel import regions


class Joined:
    """The base of classes that combine one of this library with one of a model."""

    ours: type
    theirs: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle it as any object. The class is made again when it is unpickled."""
        rest = super().__reduce_ex__(2)[2:]
        return (_remade, (self.ours, self.theirs, self.is_below), *rest)

    is_below = False
    """Tells that this library's class takes the place of a base of the model's class."""


def _remade(ours: type, theirs: type, is_below: bool) -> Any:
    kind = joined_class(ours, theirs, is_below)
    return kind.__new__(kind)


def joined_class(ours: Any, theirs: Any, is_below: bool = False) -> Any:
    """Return a class of both, under the name of `theirs`. Its forward() is that of `ours`, which
    calls that of `theirs` by super(). is_below: its forward() is that of `theirs`, which must
    call that of `ours` by super()."""
    return _joined(ours, theirs, is_below)


@cache
def _joined(ours: Any, theirs: Any, is_below: bool) -> Any:
    bases: tuple[Any, ...] = (Joined, ours, theirs)
    if is_below:
        bases = (_Outer, Joined, theirs, _below(ours))
    told = {
        "ours": ours,
        "theirs": theirs,
        "is_below": is_below,
        "__module__": theirs.__module__,
        "__qualname__": theirs.__qualname__,
        "__doc__": theirs.__doc__,
    }
    return type(theirs.__name__, bases, told)


@cache
def _below(ours: Any) -> Any:
    return type(ours.__name__, (_Inner, ours), {"__module__": ours.__module__})


class _Outer:
    """A forward() that ends up in our own, which is seen to in its first call."""

    ours: type
    where: str
    _is_reached = False
    _is_known = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the forward() of the model's class. Raises ConfigError if it computes without the
        inherited one."""
        found = super().forward(*inputs, **named)  # type: ignore[misc]
        is_traced = regions.is_traced()  # a graph would be made anew for another value
        if is_traced or not self._is_known:
            if not self._is_reached:
                raise ConfigError(
                    f"{self.where}: the forward() of a {type(self).__name__} does not call that of "
                    f"the {self.ours.__mro__[-3].__name__} that it is made of, and so does not "
                    f"know that this rank has a part: leave it out of the plan, or cut its "
                    f"parameters by Cut() within a module that is Summed()"
                )
            if not is_traced:
                self._is_known = True
        return found


class _Inner:
    """Notes that it is called."""

    _is_reached: bool

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call this library's forward(), and note that it was reached."""
        if regions.is_traced() or not self._is_reached:
            self._is_reached = True
        return super().forward(*inputs, **named)  # type: ignore[misc]


def calls_forward(module: nn.Module) -> bool:
    """Return whether the forward() of a module's class may call that of its base class."""
    code = getattr(type(module).forward, "__code__", None)
    return code is None or "forward" in code.co_names


def output_dim(module: nn.Module) -> int | None:
    """Return the dimension of its weight for outputs if a module computes what Linear does,
    whatever its class: 0 as in torch's, 1 as in transformers' Conv1D; else None. The module is
    tried out, with other numbers in place of its parameters."""
    if "forward" in vars(module):
        return None
    own = dict(module.named_parameters())
    weight = own.get("weight")
    if weight is None or weight.dim() != 2 or not own.keys() <= {"weight", "bias"}:
        return None
    rows, columns = weight.shape
    for dim, inputs, outputs in ((0, columns, rows), (1, rows, columns)):
        bias = own.get("bias")
        if bias is not None and tuple(bias.shape) != (outputs,):
            continue
        if _computes(module, dim, inputs, outputs, bias is not None):
            return dim
    return None


def _computes(module: nn.Module, dim: int, inputs: int, outputs: int, has_bias: bool) -> bool:
    weight = _numbers(*((outputs, inputs) if dim == 0 else (inputs, outputs)))
    given = {"weight": weight} | ({"bias": _numbers(outputs)} if has_bias else {})
    tried = _numbers(2, 2, inputs)
    expected = nn.functional.linear(tried, weight if dim == 0 else weight.T, given.get("bias"))
    forward: Any = type(module).forward
    try:
        with torch.no_grad(), torch.random.fork_rng([]), replaced({module: given}):
            found = forward(module, tried)
    except Exception:  # of whatever a stranger's code makes of another dtype or shape
        return False
    is_alike = isinstance(found, torch.Tensor) and found.shape == expected.shape
    return is_alike and torch.allclose(found.float(), expected, rtol=1e-3, atol=1e-3)


def _numbers(*shape: int) -> torch.Tensor:
    """Return numbers that are equal on all ranks, without a generator."""
    size = torch.Size(shape).numel()
    return torch.arange(size).remainder_(9973).mul(12.9898).sin_().view(shape)


class StandIn:
    """A module with other tensors in the place of some parameters of its own, which stays as it is:
    within activation checkpointing a graph must not change anything around it."""

    def __init__(self, module: object, tensors: Mapping[str, Any]) -> None:
        self._module, self._tensors = module, tensors

    if not TYPE_CHECKING:  # a checker would take any name

        def __getattr__(self, name: str) -> Any:
            if name in self._tensors:
                return self._tensors[name]
            found = getattr(type(self._module), name, None)
            if isinstance(found, FunctionType):
                return MethodType(found, self)
            return getattr(self._module, name)


def has_stand_in(kind: type) -> bool:
    """Return whether the methods of a module's class neither write attributes nor call inherited
    ones."""
    methods = [each for name, each in vars(kind).items() if not name.startswith("__")]
    codes = [each.__code__ for each in methods if isinstance(each, FunctionType)]
    return "forward" in vars(kind) and not any(
        "__class__" in code.co_freevars
        or any(each.opname == "STORE_ATTR" for each in dis.get_instructions(code))
        for code in codes
    )


@contextmanager
def replaced(tensors: Mapping[nn.Module, Mapping[str, Any]]) -> Iterator[None]:
    """Replace parameters of modules by these tensors in this block."""
    kept = [(module, dict(module._parameters)) for module in tensors]
    try:
        for module, given in tensors.items():
            module._parameters.update(given)
        yield
    finally:
        for module, own in kept:
            module._parameters.update(own)
