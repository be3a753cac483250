"""What parallel code needs of a framework, under torch's names where torch has one.

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
        """Bytes of an element."""


class Values(Protocol):
    """What collectives take: an array of numpy or cupy, or a tensor of torch outside of graphs.

    They have Python's operators in common, with which parallel code computes in place.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""

    @property
    def dtype(self) -> DType:
        """The type of the elements."""

    @property
    def nbytes(self) -> int:
        """The size of all elements."""

    def reshape(self, *shape: int) -> Self:
        """The same elements in another shape, of the same memory if they lie so there."""

    def __getitem__(self, key: Any) -> Self: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __add__(self, other: Any) -> Self: ...

    def __mul__(self, other: Any) -> Self: ...

    def __iadd__(self, other: Any) -> Self: ...

    def __imul__(self, other: Any) -> Self: ...


class Handle(Protocol):
    """What registering a hook returns."""

    def remove(self) -> None:
        """Do not call the hook any more."""


class Tensor(Protocol):
    """A tensor that gradients flow through, such as a parameter."""

    data: Any
    """Its `Values`, which share its memory."""
    grad: Any
    """The tensor of its accumulated gradient, or None."""
    requires_grad: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""

    @property
    def dtype(self) -> DType:
        """The type of the elements."""

    @property
    def device(self) -> object:
        """Where it is."""

    def numel(self) -> int:
        """The number of elements."""

    def is_floating_point(self) -> bool:
        """Whether gradients can be of its type."""

    def to(self, dtype: Any) -> Self:
        """The same values in another type; gradients flow back."""

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
        """What it computes."""

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Its parameters with their names, each once."""

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """State that is no parameter, with its names."""

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """The module itself, as "", and all modules below it, each once."""

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below it."""

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
    """One framework. `T` are its tensors, `V` their values, and `M` its modules."""

    @property
    def name(self) -> str:
        """How messages and ranks call it: "torch" or "nn"."""

    @property
    def tensor_type(self) -> type[T]:
        """What tensors are instances of."""

    @property
    def module_type(self) -> type:
        """What models are instances of, and so are wrappers around them."""

    # Values and their memory

    def dtype(self, name: str) -> DType:
        """The type of this name. ConfigError for a name that is none."""

    def cast(self, values: V, dtype: str) -> V:
        """Values of this type: themselves, or a copy."""

    def empty(self, size: int, dtype: str, like: T) -> V:
        """Uninitialised values where `like` is."""

    def from_numpy(self, memory: Any, dtype: str) -> V:
        """Values of this type in the memory of a numpy array of bytes."""

    def releasable(self, size: int, dtype: str, like: T) -> V:
        """Uninitialised private values, of which release() gives the memory back."""

    def release(self, values: V) -> None:
        """Give their memory to the system until allocate(). Views of them stay."""

    def allocate(self, values: V) -> None:
        """Give them memory again, with any contents."""

    def part(self, flat: V, start: int, like: T) -> V:
        """A view of the elements from `start` on, in the shape of `like` and as it lies in memory
        where that can be."""

    def array(self, flat: V) -> Any:
        """The memory of flat values as an array of numpy, or of cupy."""

    def dense(self, values: V) -> V:
        """Values with all their zeros: themselves unless they are sparse."""

    def let_go_of_freed(self) -> None:
        """Give the system memory that the framework has freed and keeps for later."""

    # Tensors

    def tensor(self, values: V) -> T:
        """A tensor of the same memory."""

    def set_gradient(self, parameter: T, gradient: V) -> None:
        """Let a parameter's gradient be a tensor of these values' memory, also of another type."""

    def write_gradient(self, gradient: T, values: V) -> None:
        """Copy values into a gradient, which may be sparse and stays so."""

    def is_at(self, gradient: V, view: V) -> bool:
        """Whether the values of a gradient are what set_gradient() makes of this view."""

    def mark(self, parameter: T, mark: Part | Same) -> None:
        """Let the framework's own functions know who has other parts of a parameter, or the same:
        what would go wrong is refused there."""

    def watched(self, use: Callable[[Any], None]) -> type | None:
        """A type for watch(), by which an operation with a parameter calls use(parameter) before it
        takes the values; None if the framework has no such."""

    def watch(self, parameter: T, kind: type | None) -> None:
        """Give a parameter this type; None gives it its own back."""

    # Modules

    def is_called(self, module: M) -> bool:
        """Whether a module is called when its parameters are used, which containers without a
        forward() are not."""

    def gives_sparse_gradients(self, module: M) -> bool:
        """Whether a module gives its parameters gradients without their zeros."""

    def communicates_in_backward(self, module: M) -> bool:
        """Whether a module of the framework itself has collectives in its backward pass."""

    def materialise(self, module: M, initialise: Initialise) -> None:
        """Give a module's tensors that have no memory some on the CPU, and then call
        initialise(module)."""

    def on_state_dict(self, module: M, before: Call) -> None:
        """Call before() whenever the state of a module is asked for."""

    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, but a compiler of models does not look into it."""

    def checkpoint(self, call: Callable[..., Any], inputs: Any, named: Any) -> Any:
        """call(*inputs, **named), which is computed once more in the backward pass."""

    # Graphs

    def apply(self, operation: Operation, tensor: T) -> T:
        """The result of an operation, through which gradients flow by way of its adjoint."""

    def apply_jointly(self, operation: JointOperation, *tensors: T) -> T:
        """The result of an operation with several tensors, through which gradients flow."""

    def cat(self, tensors: Sequence[T], dim: int = 0) -> T:
        """Tensors one behind the other along a dimension."""

    def is_grad_enabled(self) -> bool:
        """Whether what is computed now can be differentiated."""

    def set_grad_enabled(self, mode: bool) -> AbstractContextManager[object]:
        """A block in which what is computed can be differentiated, or not."""

    def in_backward(self) -> bool:
        """Whether this thread is inside a backward pass."""

    def is_nested(self) -> bool:
        """Whether at the end of a backward pass it was one within another."""

    def at_end_of_backward(self, call: Call) -> None:
        """Call it once when the present backward pass has ended; what it raises ends the pass.

        A pass within another, as reentrant checkpointing makes, ends by itself: is_nested().
        """

    def on_backward(self, outputs: Iterable[T], call: Call) -> None:
        """Call it whenever a backward pass that accumulates gradients begins at one of these
        tensors, the model's parameters and inputs among them left out."""

    def reached(self, outputs: Sequence[T]) -> set[int]:
        """The id() of the parameters that these tensors depend on."""
