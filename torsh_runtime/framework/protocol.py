"""Declares what parallel code needs of a framework, under torch's names if torch has one.

torch has the tensors and modules as they are; torsh_runtime.nn has the same names. `Framework` is
what remains: functions in which the frameworks differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

from torsh_runtime.framework.operations import JointOperation, Operation
from torsh_runtime.framework.parts import Part, Same

Call = Callable[[], None]
Initialise = Callable[[Any], object]


class DType(Protocol):
    """The type of elements, as a framework has it."""

    @property
    def itemsize(self) -> int:
        """Return the number of bytes of an element."""


class Values(Protocol):
    """The arguments of collectives: an array of numpy or cupy, or a tensor of torch outside of
    graphs.

    They have Python's operators in common, with which parallel code computes in place.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the dimensions."""

    @property
    def dtype(self) -> DType:
        """Return the type of the elements."""

    @property
    def nbytes(self) -> int:
        """Return the size of all elements in bytes."""

    def reshape(self, shape: tuple[int, ...], /) -> Self:
        """Return the same elements in a different shape, in the same memory if their order
        allows it."""

    def __getitem__(self, key: Any) -> Self: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __add__(self, other: Any) -> Self: ...

    def __mul__(self, other: Any) -> Self: ...

    def __iadd__(self, other: Any) -> Self: ...

    def __imul__(self, other: Any) -> Self: ...


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
    def device(self) -> object:
        """Return the device that it is on."""

    def numel(self) -> int:
        """Return the number of elements."""

    def is_floating_point(self) -> bool:
        """Return whether its type can have gradients."""

    def to(self, dtype: Any) -> Self:
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

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """Return the module itself, as "", and all modules below it, each once."""

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Return the modules directly below it."""

    def register_forward_pre_hook(
        self, hook: Callable[..., Any], *, prepend: bool = False
    ) -> Handle:
        """Call hook(module, inputs) before forward()."""

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Call hook(module, inputs, outputs) after forward()."""


T = TypeVar("T")
V = TypeVar("V")
M = TypeVar("M", contravariant=True)


class Framework(Protocol[T, V, M]):
    """Describes one framework. `T` are its tensors, `V` their values, and `M` its modules."""

    @property
    def name(self) -> str:
        """Return its name in messages and between ranks: "torch" or "nn"."""

    @property
    def tensor_type(self) -> type[T]:
        """Return the class that tensors are instances of."""

    @property
    def module_type(self) -> type:
        """Return the class that models are instances of, and wrappers around them too."""

    # Values and their memory

    def dtype(self, name: str) -> DType:
        """Return the type of this name. Raises ConfigError if there is none."""

    def cast(self, values: V, dtype: str) -> V:
        """Return values of this type: themselves, or a copy."""

    def empty(self, size: int, dtype: str, like: T) -> V:
        """Return uninitialised values on the device of `like`."""

    def from_numpy(self, memory: Any, dtype: str) -> V:
        """Return values of this type in the memory of a numpy array of bytes."""

    def releasable(self, size: int, dtype: str, like: T) -> V:
        """Return uninitialised private values, whose memory release() gives back."""

    def release(self, values: V) -> None:
        """Give their memory to the system until allocate(). Views of them stay."""

    def allocate(self, values: V) -> None:
        """Give them memory again, with any contents."""

    def part(self, flat: V, start: int, like: T) -> V:
        """Return a view of the elements from `start` on, in the shape of `like`, and with its
        order in memory if that is possible."""

    def array(self, flat: V) -> Any:
        """Return the memory of flat values as an array of numpy, or of cupy."""

    def dense(self, values: V) -> V:
        """Return values with all their zeros: themselves unless they are sparse."""

    def let_go_of_freed(self) -> None:
        """Give the system memory that the framework has freed and keeps for later."""

    # Tensors

    def tensor(self, values: V) -> T:
        """Return a tensor of the same memory."""

    def set_gradient(self, parameter: T, gradient: V) -> None:
        """Let a parameter's gradient be a tensor of these values' memory, also of another type."""

    def write_gradient(self, gradient: T, values: V) -> None:
        """Copy values into a gradient, which may be sparse and stays so."""

    def is_at(self, gradient: V, view: V) -> bool:
        """Return whether the values of a gradient are what set_gradient() makes of this view."""

    def mark(self, parameter: T, mark: Part | Same) -> None:
        """Tell the framework's own functions which ranks have other parts of a parameter, or the
        same: they refuse what would go wrong."""

    def watched(self, use: Callable[[Any], None]) -> type | None:
        """Return a type for watch(), with which an operation with a parameter calls
        use(parameter) before it takes the values. Return None if the framework has no such type."""

    def watch(self, parameter: T, kind: type | None) -> None:
        """Give a parameter this type; None gives it its own back."""

    # Modules

    def is_called(self, module: M) -> bool:
        """Return whether a module is called when its parameters are used. Containers without a
        forward() are not."""

    def gives_sparse_gradients(self, module: M) -> bool:
        """Return whether a module gives its parameters gradients without their zeros."""

    def communicates_in_backward(self, module: M) -> bool:
        """Return whether a module of the framework itself has collectives in its backward pass."""

    def materialise(self, module: M, initialise: Initialise) -> None:
        """Give a module's tensors that have no memory some on the CPU, and then call
        initialise(module)."""

    def on_state_dict(self, module: M, before: Call) -> None:
        """Call before() whenever the state of a module is asked for."""

    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, hidden from a compiler of models."""

    def checkpoint(self, call: Callable[..., Any], inputs: Any, named: Any) -> Any:
        """Return call(*inputs, **named), which is computed once more in the backward pass."""

    # Graphs

    def apply(self, operation: Operation, tensor: T) -> T:
        """Return the result of an operation. Gradients flow back by its adjoint."""

    def apply_jointly(self, operation: JointOperation, *tensors: T) -> T:
        """Return the result of an operation with several tensors, through which gradients flow."""

    def cat(self, tensors: Sequence[T], dim: int = 0) -> T:
        """Return the tensors concatenated along a dimension."""

    def is_grad_enabled(self) -> bool:
        """Return whether present computations can be differentiated."""

    def set_grad_enabled(self, mode: bool) -> AbstractContextManager[object]:
        """Return a block whose computations can be differentiated, or cannot."""

    def in_backward(self) -> bool:
        """Return whether this thread is inside a backward pass."""

    def is_nested(self) -> bool:
        """Return whether a backward pass that ends was one within another."""

    def at_end_of_backward(self, call: Call) -> None:
        """Call it once when the present backward pass has ended; what it raises ends the pass.

        A pass within another, as reentrant checkpointing makes, ends by itself: is_nested().
        """

    def on_backward(self, outputs: Iterable[T], call: Call) -> None:
        """Call it whenever a backward pass that accumulates gradients begins at one of these
        tensors, the model's parameters and inputs among them left out."""

    def reached(self, outputs: Sequence[T]) -> set[int]:
        """Return the id() of the parameters that these tensors depend on."""
