"""Declares what parallel code needs of a framework, under torch's names if torch has one.

torch has the tensors and modules as they are; torsh_runtime.nn has the same names. `Framework` is
what remains: functions in which the frameworks differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from torsh_runtime.framework.foreach import Foreach
from torsh_runtime.framework.functional import Functional
from torsh_runtime.framework.operations import JointOperation, Operation
from torsh_runtime.framework.parts import Part, Same
from torsh_runtime.framework.values import DType

Call = Callable[[], None]
Initialise = Callable[[Any], object]


T = TypeVar("T")
V = TypeVar("V")
M = TypeVar("M", contravariant=True)
Given = TypeVar("Given", contravariant=True)
Source = TypeVar("Source", contravariant=True)


class Splitter(Protocol[Given, Source]):
    """Runs backward passes in two parts. `Given` are tensors, and `Source` their values."""

    def splitting(self) -> AbstractContextManager[object]:
        """Prepare, within the block, forward passes whose backward passes are in two parts."""

    def backward_inputs(
        self, outputs: Sequence[Given], gradients: Sequence[Source], inputs: Sequence[Given]
    ) -> Call:
        """Accumulate the gradients of `inputs`, and return a function for the other gradients.

        Gradients that cannot be separated from those of `inputs` are accumulated at once, too. The
        outputs must have been computed within splitting().
        """


class MemoryPool(Protocol):
    """Lists the operations of memory that an allocator gives to nothing else."""

    def allocate(self, values: Any) -> None:
        """Give values that release() has freed some of the pool."""

    def address(self, values: Any) -> int:
        """Return the address of the values."""

    def segment_of(self, values: Any) -> tuple[int, int]:
        """Return address and bytes of the whole memory in which the values are."""


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

    @property
    def functional(self) -> Functional:
        """Return its functions of layers."""

    @property
    def foreach(self) -> Foreach:
        """Return its functions of many tensors at once."""

    @property
    def has_functional_call(self) -> bool:
        """Return whether functional_call() is there."""

    # Values and their memory

    def dtype(self, name: str) -> DType:
        """Return the type of this name. Raises ConfigError if there is none."""

    def cast(self, values: V, dtype: str) -> V:
        """Return values of this type: themselves, or a copy."""

    def empty(self, size: int | tuple[int, ...], dtype: str, like: T | None) -> V:
        """Return uninitialised values on the device of `like`; None: in the host's memory."""

    def zeros(self, size: tuple[int, ...], dtype: str, like: T | None) -> V:
        """Return zeros on the device of `like`; None: in the host's memory."""

    def full_like(self, tensor: T, value: float) -> V:
        """Return values of the same shape, dtype and device, all of them equal to `value`."""

    def from_numpy(self, memory: Any, dtype: str) -> V:
        """Return values of this type in the memory of a numpy array of bytes."""

    def releasable(self, size: int, dtype: str, like: T) -> V:
        """Return uninitialised private values, whose memory release() gives back."""

    def release(self, values: V) -> None:
        """Give their memory to the system until allocate(). Views of them stay."""

    def allocate(self, values: V) -> None:
        """Give them memory again, with any contents."""

    def memory_pool(self, like: V) -> MemoryPool | None:
        """Return new memory on the GPU of `like`; None if this framework has no such pools."""

    def holders(self, values: V) -> int:
        """Return how many arrays have the memory of these values, or a few more: to be compared
        with an earlier result for the same values only."""

    def copy(self, targets: Sequence[V], sources: Sequence[V]) -> None:
        """Copy values into others of the same shapes, at once if the framework can."""

    def part(self, flat: V, start: int, like: T) -> V:
        """Return a view of the elements from `start` on, in the shape of `like`, and with its
        order in memory if that is possible."""

    def pinned(self, size: int, dtype: str) -> V:
        """Return uninitialised memory of the CPU that a GPU copies to and from by itself."""

    def aside(self, like: T) -> AbstractContextManager[None]:
        """Put what the block launches on the device of `like` on a stream of its own, behind what
        the current one has got by now."""

    def copy_without_waiting(self, target: V, source: V) -> None:
        """Copy values to or from pinned memory, in turn with the current stream."""

    def moment(self, like: T) -> Call:
        """Return a function that waits until the device of `like` has done what the current stream
        has got by now."""

    @property
    def offloads(self) -> bool:
        """Return whether values on GPUs can be kept in the memory of the CPU."""

    def array(self, flat: V) -> Any:
        """Return the memory of flat values as an array of numpy, or of cupy."""

    def following(self, flat: V) -> AbstractContextManager[object]:
        """Return a block in which what computes with array(flat) on a GPU does so behind what the
        framework has enqueued there, and before what it enqueues later."""

    def dense(self, values: V) -> V:
        """Return values with all their zeros: themselves unless they are sparse."""

    def let_go_of_freed(self) -> None:
        """Give the system memory that the framework has freed and keeps for later."""

    @property
    def draws_for_whole(self) -> bool:
        """Return whether dropout of a part draws what one process would draw for that part; else
        each rank has a stream of its own."""

    def initial_seed(self) -> int:
        """Return what the generator was seeded with."""

    def random_number(self) -> int:
        """Draw a number below 2⁶² from the generator, which checkpointing draws again."""

    def get_rng_state(self, like: T | None) -> object:
        """Return the state of the generators that dropout uses on the device of `like`."""

    def set_rng_state(self, state: Any) -> None:
        """Restore what get_rng_state() returned."""

    def synchronize(self, like: T | None) -> None:
        """Wait until the device of `like` has done all its work."""

    # Tensors

    def tensor(self, values: V) -> T:
        """Return a tensor of the same memory."""

    def parameter(self, tensor: T) -> T:
        """Return a parameter of the same memory."""

    def uniform(self, shape: tuple[int, ...], bound: float, dtype: Any) -> T:
        """Draw from the uniform distribution in ±bound. dtype: None means float32, or what the
        framework has been told."""

    def as_tensor(self, array: NDArray[Any], like: T) -> T:
        """Return a constant of the dtype of `like`, on its device."""

    def numpy(self, tensor: T) -> NDArray[Any]:
        """Return the values in the host's memory, in a dtype that numpy has."""

    def leaf(self, values: V, requires_grad: bool) -> T:
        """Return a tensor of the same memory, at which a backward pass ends."""

    def values(self, tensor: T) -> V:
        """Return the values of a tensor, outside of any graph and row-major."""

    def beyond(self, tensor: T) -> str:
        """Describe what a tensor is besides its values, which a copy of them would not be; return
        "" if it is nothing."""

    def set_gradient(self, parameter: T, gradient: V) -> None:
        """Let a parameter's gradient be a tensor of these values' memory, also of another type."""

    def write_gradient(self, gradient: T, values: V) -> None:
        """Copy values into a gradient, which may be sparse and stays so."""

    def is_at(self, gradient: V, view: V) -> bool:
        """Return whether the values of a gradient are what set_gradient() makes of this view."""

    def mark(self, parameter: T, mark: Part | Same) -> None:
        """Tell the framework's own functions which ranks have other parts of a parameter, or the
        same: they refuse what would go wrong."""

    def check_spread(self, optimizer: Any, wrapper: str) -> None:
        """Raise ConfigError if an optimizer goes wrong where each rank steps some of its
        parameters, as `wrapper` lets them."""
        ...

    def settle(self, optimizer: Any) -> None:
        """Decide how an optimizer steps on parameters of which ranks have parts, if that is not
        decided yet, so that its state can be loaded. All ranks call it.

        Raises ConfigError on all ranks if it cannot step.
        """

    def is_piece_of_wrapper(self, parameter: T) -> bool:
        """Return whether a wrapper has cut a parameter."""

    def is_made_of_others(self, tensor: T) -> bool:
        """Return whether a tensor consists of other tensors, and has no memory of its own."""

    def watched(self, use: Callable[[Any], None]) -> type | None:
        """Return a type for watch(), with which an operation with a parameter calls
        use(parameter) before it takes the values. Return None if the framework has no such type."""

    def watch(self, parameter: T, kind: type | None) -> None:
        """Give a parameter this type; None gives it its own back."""

    # Modules

    def functional_call(self, module: M, parameters: Mapping[str, T], inputs: tuple[T, ...]) -> Any:
        """Call a module with these tensors in place of its parameters."""

    def is_called(self, module: M) -> bool:
        """Return whether a module is called when its parameters are used. Containers without a
        forward() are not."""

    def gives_sparse_gradients(self, module: M) -> bool:
        """Return whether a module gives its parameters gradients without their zeros."""

    def communicates_in_backward(self, module: M) -> bool:
        """Return whether a module of the framework itself has collectives in its backward pass."""

    def device(self, given: Any) -> str:
        """Return the name of a device, which is given by its name, by its number or as the
        framework has it. Raises ConfigError if there is none."""

    def materialise(self, module: M, initialise: Initialise, device: str = "cpu") -> None:
        """Give a module's tensors that have no memory some on this device, and then call
        initialise(module)."""

    def on_state_dict(self, module: M, before: Call) -> None:
        """Call before() whenever the state of a module is asked for."""

    def on_broken_forward(self, module: M, call: Call) -> None:
        """Call it when a forward pass of the module has raised an exception, if the framework can
        tell."""

    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, hidden from a compiler of models."""

    def checkpoint(self, call: Callable[..., Any], inputs: Any, named: Any) -> Any:
        """Return call(*inputs, **named), which is computed once more in the backward pass."""

    def offloading(
        self, call: Callable[..., Any], inputs: Any, named: Any, kept: Sequence[V]
    ) -> Any:
        """Return call(*inputs, **named), and keep what its backward pass needs in the memory of
        the CPU meanwhile, except for what is in the memory of `kept`."""

    # Graphs

    def apply(self, operation: Operation, tensor: T) -> T:
        """Return the result of an operation. Gradients flow back by its adjoint."""

    def apply_jointly(self, operation: JointOperation, *tensors: T) -> T:
        """Return the result of an operation with several tensors, through which gradients flow."""

    def cat(self, tensors: Sequence[T], dim: int = 0) -> T:
        """Return the tensors concatenated along a dimension."""

    def is_grad_enabled(self) -> bool:
        """Return whether present computations can be differentiated."""

    def is_inference_mode_enabled(self) -> bool:
        """Return whether nothing that is computed at present can ever have gradients."""

    def set_grad_enabled(self, mode: bool) -> AbstractContextManager[object]:
        """Return a block whose computations can be differentiated, or cannot."""

    def backward(self, outputs: Sequence[T], gradients: Sequence[V]) -> None:
        """Accumulate the gradients of all leaves that the outputs depend on."""

    def splitter(self) -> Splitter[T, V]:
        """Return what runs backward passes in two parts."""

    def held_bytes(self, forward: Callable[[], object], parameters: Iterable[T]) -> int:
        """Return how many bytes a backward pass needs of this forward pass, besides parameters."""

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
