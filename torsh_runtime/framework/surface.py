"""Says what parallelism needs of the tensors and modules of a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, overload

from torsh_runtime.framework.values import DType


class Handle(Protocol):
    """Removes a hook that was registered."""

    def remove(self) -> None:
        """Do not call the hook any more."""


class Tensor(Protocol):
    """A tensor that gradients flow through, such as a parameter."""

    data: Any
    """Values of the tensor, which share its memory."""
    grad: Any
    """The tensor of its accumulated gradient, or None."""
    requires_grad: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the dimensions."""

    @property
    def dtype(self) -> DType:
        """Return the type of the elements."""

    @property
    def ndim(self) -> int:
        """Return the number of dimensions."""

    @property
    def is_leaf(self) -> bool:
        """Return whether no operation in a graph has made it."""

    @property
    def device(self) -> object:
        """Return the device that it is on."""

    def dim(self) -> int:
        """Return the number of dimensions."""

    def numel(self) -> int:
        """Return the number of elements."""

    def item(self) -> Any:
        """Return the only element as a number."""

    def reshape(self, *shape: int) -> Tensor:
        """Return the same elements in a different shape."""

    @overload
    def sum(self) -> Tensor:
        """Return the sum of all elements, or those along a dimension."""

    @overload
    def sum(self, dim: int, /) -> Tensor: ...

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> Tensor: ...

    def detach(self) -> Tensor:
        """Return a tensor of the same memory in no graph."""

    def is_floating_point(self) -> bool:
        """Return whether its type can have gradients."""

    def to(self, dtype: Any) -> Tensor:
        """Return the same values in a different type; gradients flow back."""

    def register_hook(self, hook: Callable[[Any], Any]) -> Handle:
        """Call hook(gradient) in backward passes."""

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> Handle:
        """Call hook(tensor) whenever its gradient has been accumulated."""


class Module(Protocol):
    """A model, or a module of one."""

    training: bool
    _parameters: dict[str, Any]
    _modules: dict[str, Any]

    @property
    def forward(self) -> Callable[..., Any]:
        """Return the function that it computes."""

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Return its parameters with their names, each once."""

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """State that is no parameter, with its names."""

    def __call__(self, *inputs: Any, **named: Any) -> Any: ...

    def parameters(self, recurse: bool = True) -> Iterator[Tensor]:
        """Return its parameters, each once."""

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Return state that is no parameter."""

    def modules(self) -> Iterator[Module]:
        """Return the module itself and all modules below it, each once."""

    def children(self) -> Iterator[Module]:
        """Return the modules directly below it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state by name."""

    def zero_grad(self) -> None:
        """Let its parameters have no gradients."""

    def named_modules(
        self, *, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """Return the module itself, as "", and all modules below it, each once."""

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Return the modules directly below it."""

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False
    ) -> Handle:
        """Call hook(module, inputs) before forward()."""

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call hook(module, inputs, outputs) after forward()."""
