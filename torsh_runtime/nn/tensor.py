"""Defines Tensor, an array that knows the operation that created it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from torsh_runtime.nn import activations, elementwise, linear_algebra, reductions, shaping
from torsh_runtime.nn.arrays import (
    Array,
    array_module,
    is_floating,
    to_device,
    write,
)
from torsh_runtime.nn.backward import backward
from torsh_runtime.nn.graph import Hook, Variable, derived, needs_gradient
from torsh_runtime.nn.hooks import RemovableHandle

if TYPE_CHECKING:
    from typing import Self

_T = TypeVar("_T")


class Tensor(Variable):
    """Holds an array, and what is needed to find gradients for it.

    Methods have the names and arguments of torch's; 16-bit floating point types are for storage,
    and are computed with as float32, of which type the results are. An array that an operation was
    given must not be changed before the backward pass: it is not copied, and the change is not
    noticed.

    Attributes:
        data: The numpy or cupy array itself.
        grad: The gradient that backward passes have added up, None before the first.
        requires_grad: Whether they shall, or whether this depends on tensors that do.

    Example:
        ```python
        x = tr.nn.tensor([1.0, 2.0], requires_grad=True)
        (x * x).sum().backward()
        x.grad.tolist()  # [2.0, 4.0]
        ```
    """

    __array_ufunc__ = None  # let the tensor compute array + tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the axes."""
        shape: tuple[int, ...] = self.data.shape
        return shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type of the elements, as numpy's."""
        dtype: np.dtype[Any] = self.data.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def device(self) -> str:
        """Return "cpu", or "cuda:0" and so on."""
        return "cpu" if array_module(self.data) is np else f"cuda:{self.data.device.id}"

    @property
    def is_leaf(self) -> bool:
        """Return whether it was made by the user and not by a recorded operation."""
        return self.node is None

    @property
    def T(self) -> Tensor:  # noqa: N802
        """Return this tensor with its axes in reverse order."""
        return shaping.permute(self, *reversed(range(self.ndim)))

    def size(self, dim: int | None = None) -> Any:
        """Return the shape, or the size of the axis `dim`."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """Return the number of axes."""
        return self.ndim

    def is_floating_point(self) -> bool:
        """Return whether the elements are of a floating point type."""
        return is_floating(self.dtype)

    def numel(self) -> int:
        """Return the number of elements."""
        return int(self.data.size)

    def item(self) -> Any:
        """Return the only element as a number of Python's.

        Raises:
            ValueError: If there is not exactly one element.

        Example:
            ```python
            loss = model(batch).mean()
            print(loss.item())
            ```
        """
        if self.data.size != 1:
            raise ValueError(f"item() is for tensors of one element, not of shape {self.shape}")
        return self.data.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of numbers."""
        return self.data.tolist()

    def numpy(self) -> Array:
        """Return the array in this process's memory; that of a tensor on the CPU is shared.

        Raises:
            RuntimeError: If the tensor needs a gradient: call detach() first.

        Example:
            ```python
            values = tr.nn.tensor([1.0, 2.0]).numpy()
            ```
        """
        if self.requires_grad:
            raise RuntimeError("this tensor needs a gradient: call detach().numpy()")
        return to_device(self.data, "cpu")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def detach(self) -> Tensor:
        """Return a tensor of the same array, without the record of how it was computed.

        Example:
            ```python
            model(batch).detach().numpy()
            ```
        """
        return Tensor(self.data)

    def clone(self) -> Tensor:
        """Return a copy of the array, through which gradients flow."""
        return derived(self.data.copy(), (self, lambda g: g))

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set requires_grad, and return this tensor."""
        self.requires_grad = requires_grad
        return self

    def to(self, target: Any) -> Tensor:
        """Return the tensor with another dtype, or on "cuda" or "cpu". Gradients flow back.

        Args:
            target: A dtype, or "cpu", "cuda" or "cuda:1".

        Example:
            ```python
            tr.nn.tensor([1.0, 2.0]).to("float64")
            ```
        """
        if isinstance(target, str) and target.startswith(("cpu", "cuda")):
            there, back = to_device(self.data, target), self.device
            return derived(there, (self, lambda g: to_device(g, back)))
        return elementwise.cast(self, target)

    def cpu(self) -> Tensor:
        """Return the tensor in this process's memory."""
        return self.to("cpu")

    def cuda(self) -> Tensor:
        """Return the tensor in a GPU's memory."""
        return self.to("cuda")

    def float(self) -> Tensor:
        """Return the tensor as float32."""
        return elementwise.cast(self, np.float32)

    def double(self) -> Tensor:
        """Return the tensor as float64."""
        return elementwise.cast(self, np.float64)

    def copy_(self, source: Any) -> Self:
        """Write the elements of `source`, a tensor or an array, into this array.

        Returns:
            This tensor.

        Raises:
            RuntimeError: If the tensor needs a gradient, unless within no_grad().
        """
        if needs_gradient(self):
            raise RuntimeError("a tensor that needs a gradient is written within no_grad() only")
        write(self.data, source.data if isinstance(source, Variable) else source)
        return self

    def zero_(self) -> Self:
        """Write zeros into this array.

        Returns:
            This tensor.

        Raises:
            RuntimeError: As copy_().
        """
        return self.copy_(0)

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add the gradient of this tensor to the .grad of all leaves it depends on.

        See nn.backward.backward.

        Args:
            gradient: The weights of the elements, of this tensor's shape; None is 1, for a tensor
                of one element.
            retain_graph: Whether the graph is kept, to be walked again.

        Raises:
            RuntimeError: If this tensor needs no gradient, or if the graph was freed.

        Example:
            ```python
            x = tr.nn.tensor([1.0, 2.0], requires_grad=True)
            (3 * x).backward(gradient=np.ones(2, np.float32))
            x.grad.tolist()  # [3.0, 3.0]
            ```
        """
        weight = gradient.data if isinstance(gradient, Variable) else gradient
        backward([self], [weight], retain_graph)

    def retain_grad(self) -> None:
        """Keep the gradient of this tensor, which is no leaf, in .grad too."""
        if self.node is not None:
            this = weakref.ref(self)
            self.register_hook(lambda gradient: _keep(this(), gradient))

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Call hook(gradient) once the gradient of this tensor is complete.

        What it returns, unless None, replaces the gradient.

        Args:
            hook: The function.

        Returns:
            A handle that removes the hook.

        Raises:
            RuntimeError: If the tensor needs no gradient.

        Example:
            ```python
            x.register_hook(lambda gradient: 0.5 * gradient)
            ```
        """
        if not self.requires_grad:
            raise RuntimeError("a tensor that needs no gradient will not get one: no hook for it")
        hooks = self.hooks if self.node is None else self.node.hooks.setdefault(self.output, {})
        return RemovableHandle(hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call hook(this leaf) as soon as a backward pass has completed its .grad.

        The pass then continues.

        Args:
            hook: The function.

        Returns:
            A handle that removes the hook.

        Raises:
            RuntimeError: If this is no leaf that needs gradients.
        """
        if self.node is not None or not self.requires_grad:
            raise RuntimeError("gradients are accumulated in leaves that need them only")
        return RemovableHandle(self.accumulated, hook)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Any:
        return iter(shaping.unbind(self))

    def __bool__(self) -> bool:
        return bool(self.data)

    def __float__(self) -> Any:
        return self.item().__float__()

    def __int__(self) -> int:
        return int(self.item())

    def __repr__(self) -> str:
        suffix = ", requires_grad=True" if self.requires_grad else ""
        return f"tensor({np.array2string(to_device(self.data, 'cpu'), separator=', ')}{suffix})"

    __hash__ = object.__hash__
    __eq__ = elementwise.compared("__eq__")  # type: ignore[assignment]
    __ne__ = elementwise.compared("__ne__")  # type: ignore[assignment]
    __lt__ = elementwise.compared("__lt__")
    __le__ = elementwise.compared("__le__")
    __gt__ = elementwise.compared("__gt__")
    __ge__ = elementwise.compared("__ge__")

    __add__ = __radd__ = add = elementwise.add
    __sub__ = sub = elementwise.subtract
    __mul__ = __rmul__ = mul = elementwise.multiply
    __truediv__ = div = elementwise.divide
    __pow__ = pow = elementwise.power
    __neg__ = neg = elementwise.negative
    __abs__ = abs = elementwise.absolute
    __matmul__ = matmul = linear_algebra.matmul
    __getitem__ = shaping.getitem

    def __rsub__(self, other: Any) -> Tensor:
        return elementwise.subtract(other, self)

    def __rtruediv__(self, other: Any) -> Tensor:
        return elementwise.divide(other, self)

    def __rpow__(self, other: Any) -> Tensor:
        return elementwise.power(other, self)

    def __rmatmul__(self, other: Any) -> Tensor:
        return linear_algebra.matmul(other, self)

    def t(self) -> Tensor:
        """Return the transposed matrix."""
        return self.T

    exp = elementwise.exp
    log = elementwise.log
    sqrt = elementwise.sqrt
    sin = elementwise.sin
    cos = elementwise.cos
    tanh = elementwise.tanh
    sigmoid = elementwise.sigmoid
    clamp = elementwise.clamp
    masked_fill = elementwise.masked_fill
    relu = activations.relu
    softmax = activations.softmax
    log_softmax = activations.log_softmax
    sum = reductions.sum
    mean = reductions.mean
    var = reductions.var
    max = reductions.max
    min = reductions.min
    argmax = reductions.argmax
    argmin = reductions.argmin
    reshape = view = shaping.reshape
    flatten = shaping.flatten
    permute = shaping.permute
    transpose = shaping.transpose
    squeeze = shaping.squeeze
    unsqueeze = shaping.unsqueeze
    expand = shaping.expand
    contiguous = shaping.contiguous
    split = shaping.split
    chunk = shaping.chunk
    unbind = shaping.unbind


def _keep(tensor: Tensor | None, gradient: Tensor) -> None:
    if tensor is not None:
        tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
