"""A model of one framework, as the parallel code sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.modules.parts import Part, Same

T = TypeVar("T")
Named = list[tuple[str, T]]
Call = Callable[[], None]


class ModuleAdapter(ABC, Generic[T]):
    """One model. `T` are the framework's tensors.

    What computes here leaves no trace in the framework's graph.
    """

    module_class: ClassVar[type]
    """What models are instances of, and so are wrappers around them."""
    framework: ClassVar[str]
    """"torch" or "nn"."""

    def __init__(self, module: Any) -> None:
        self.module = module

    @abstractmethod
    def parameters(self) -> Named[T]:
        """Those that want gradients, in the model's order, each once."""

    @abstractmethod
    def constants(self) -> Named[T]:
        """Parameters that want no gradients."""

    @abstractmethod
    def buffers(self) -> Named[T]:
        """State that is no parameter, such as running means."""

    @abstractmethod
    def modules(self) -> Named[Any]:
        """The model itself, as "", and all modules below it, each once."""

    @abstractmethod
    def own_parameters(self, module: Any) -> Named[T]:
        """All parameters of one of its modules, without those of the modules below that."""

    @abstractmethod
    def shape(self, tensor: T) -> tuple[int, ...]:
        """Its shape."""

    @abstractmethod
    def kind(self, tensor: T) -> tuple[str, str]:
        """The names of its dtype and of its device. Tensors of one kind fit into one flat one."""

    @abstractmethod
    def values(self, tensor: T) -> Any:
        """What collectives take, which share its memory: it itself, or an array."""

    def tensor(self, values: Any) -> T:
        """The counterpart of values(): a tensor of the same memory."""
        tensor: T = values
        return tensor

    @abstractmethod
    def flat(self, like: T, size: int, group: ProcessGroup, dtype: str | None = None) -> T:
        """An uninitialised tensor of `size` elements of the same kind, or of another dtype, where
        the group's collectives work in place. All its ranks make it at the same time."""

    @abstractmethod
    def common(self, like: T, size: int, group: ProcessGroup, dtype: str | None = None) -> T | None:
        """The same, of which all ranks of the group have the one memory; None where they have none
        in common."""

    @abstractmethod
    def releasable(self, like: T, size: int, dtype: str | None = None) -> T:
        """The same, private, of which release() gives the memory back."""

    @abstractmethod
    def release(self, flat: T) -> None:
        """Give its memory to the system until allocate(). Views of it stay."""

    @abstractmethod
    def allocate(self, flat: T) -> None:
        """Give it memory again, with any contents."""

    @abstractmethod
    def flattened(self, tensor: T) -> T:
        """Its elements in one dimension, of its own memory if they lie so there."""

    @abstractmethod
    def part(self, flat: T, start: int, like: T) -> T:
        """A view of the elements from `start` on, in the shape of `like`."""

    @abstractmethod
    def shaped(self, flat: T, start: int, shape: tuple[int, ...]) -> T:
        """A view of the elements from `start` on, row-major in this shape."""

    @abstractmethod
    def slice(self, flat: T, start: int, end: int) -> T:
        """A flat view."""

    @abstractmethod
    def copy(self, target: T, source: T) -> None:
        """Copy the values, which are cast to the target's dtype."""

    @abstractmethod
    def cast(self, tensor: T, dtype: str) -> T:
        """In this dtype: itself, or a copy."""

    @abstractmethod
    def cast_buffers(self, dtype: str) -> None:
        """Let floating point buffers have this dtype."""

    @abstractmethod
    def cast_inputs(self, inputs: Any, dtype: str) -> Any:
        """The same nested lists, tuples and dicts, with floating point tensors of this dtype;
        gradients flow back."""

    @abstractmethod
    def add(self, target: T, source: T) -> None:
        """Add the values in place."""

    @abstractmethod
    def clone(self, tensor: T) -> T:
        """The same values in memory of their own."""

    @abstractmethod
    def like(self, parameter: T, values: T) -> T:
        """The same values in memory of their own, as a gradient of the parameter."""

    @abstractmethod
    def itemsize(self, dtype: str) -> int:
        """Bytes of an element. ConfigError for a name that is no dtype."""

    @abstractmethod
    def fill(self, tensor: T, value: float) -> None:
        """Set all elements."""

    @abstractmethod
    def scale(self, tensor: T, factor: float) -> None:
        """Multiply in place."""

    @abstractmethod
    def is_finite(self, tensor: T) -> bool:
        """Whether no element is infinite or NaN."""

    @abstractmethod
    def array(self, flat: T) -> Any:
        """A flat tensor's memory as an array of numpy, or of cupy."""

    @abstractmethod
    def gradient(self, parameter: T) -> T | None:
        """Its gradient."""

    @abstractmethod
    def set_gradient(self, parameter: T, gradient: T | None) -> None:
        """Give it another one, in the same memory."""

    @abstractmethod
    def set_values(self, parameter: T, values: T) -> None:
        """Let it have other memory, of any shape, as if it had always had it."""

    @abstractmethod
    def is_at(self, gradient: T, view: T) -> bool:
        """Whether a gradient is what set_gradient() makes of this view, in the view's memory."""

    @abstractmethod
    def wants_gradient(self, parameter: T) -> bool:
        """Whether backward passes give it one."""

    def communicates_in_backward(self) -> bool:
        """Whether layers have collectives of their own in their backward pass."""
        return any(getattr(each, "communicates_in_backward", False) for _, each in self.modules())

    @abstractmethod
    def on_gradient(self, parameter: T, call: Call) -> Call:
        """Call it whenever the parameter's gradient has been accumulated in a backward pass. What
        is returned ends that."""

    @abstractmethod
    def on_forward(self, module: Any, before: Call, after: Callable[[Any], None]) -> None:
        """Call before() whenever one of the modules is about to be called, and after(outputs)."""

    def around_forward(self, module: Any, around: Callable[[Any, Any, Any], Any]) -> None:
        """Let what one of the modules computes be around(forward, inputs, named inputs), within
        what on_forward() calls."""
        forward = module.forward
        module.forward = lambda *inputs, **named: around(forward, inputs, named)

    @abstractmethod
    def checkpoint(self, call: Any, inputs: Any, named: Any) -> Any:
        """call(*inputs, **named), which is computed once more in the backward pass."""

    def is_called(self, module: Any) -> bool:
        """Whether one of the modules is called when its parameters are used, which containers
        without a forward() are not."""
        forward: Any = getattr(self.module_class, "forward", None)
        return type(module).forward is not forward

    def is_meta(self, module: Any) -> bool:
        """Whether one of the modules has tensors of its own without memory."""
        return False

    def own_initialiser(self, module: Any) -> Callable[[Any], object] | None:
        """What gives such a module values, as it does itself when it is made; None if nothing."""
        return None

    def materialise(self, module: Any, initialise: Callable[[Any], object]) -> None:
        """Give such a module memory on the CPU, and then initialise(module)."""

    def replace(self, module: Any, other: Any) -> None:
        """Put another one where one of the modules is."""
        for _, parent in self.modules():
            for name, child in parent.named_children():
                if child is module:
                    setattr(parent, name, other)

    def mark(self, parameter: T, mark: Part | Same) -> None:
        """Let the framework's own functions know who has other parts of a parameter, or the same:
        what would go wrong is refused there."""

    def watched(self, use: Callable[[T], None]) -> Any:
        """A type for watch(), by which an operation with a parameter calls use(parameter) before it
        takes the values; None if the framework has no such."""
        return None

    def watch(self, parameter: T, kind: Any) -> None:
        """Give a parameter this type; None gives it its own back."""

    def tables(self) -> list[dict[str, Any]]:
        """Where the modules have their parameters and modules, by name."""
        modules = [module for _, module in self.modules()]
        return [table for each in modules for table in (each._parameters, each._modules)]

    def gives_sparse_gradients(self, module: Any) -> bool:
        """Whether one of the modules gives its parameters gradients without their zeros."""
        return False

    def on_state_dict(self, module: Any, before: Call) -> None:
        """Call it whenever the state of one of the modules is asked for."""

    @abstractmethod
    def at_end_of_backward(self, call: Call) -> None:
        """Call it once when the present backward pass has ended; what it raises ends the pass.

        A pass within another, as reentrant checkpointing makes, ends by itself: is_nested().
        """

    @abstractmethod
    def on_backward(self, outputs: object, call: Call) -> None:
        """Call it whenever a backward pass that accumulates gradients begins at one of the tensors
        within `outputs`, the model's parameters and inputs among them left out."""

    @abstractmethod
    def in_backward(self) -> bool:
        """Whether this thread is inside a backward pass."""

    @abstractmethod
    def is_nested(self) -> bool:
        """Whether at the end of a backward pass it was one within another."""

    @abstractmethod
    def reached(self, outputs: object) -> set[int]:
        """The id() of the parameters that the tensors within `outputs` depend on."""

    @abstractmethod
    def records_gradients(self) -> bool:
        """Whether what is computed now can be differentiated."""

    def let_go_of_freed(self) -> None:
        """Give the system memory that the framework has freed and keeps for later."""

    @abstractmethod
    def untraced(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same, but a compiler of models does not look into it."""


def leaves(value: object) -> Iterable[object]:
    """What is within nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    if isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each)
    else:
        yield value


def mapped(call: Callable[[Any], Any], value: Any) -> Any:
    """A value like this one, of what `call` makes of all within nested lists, tuples and dicts."""
    if isinstance(value, dict):  # whose order may be another one on other ranks
        made = {key: mapped(call, value[key]) for key in sorted(value, key=repr)}
        return {key: made[key] for key in value}
    if isinstance(value, list | tuple):
        parts = [mapped(call, each) for each in value]
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return None if value is None else call(value)
