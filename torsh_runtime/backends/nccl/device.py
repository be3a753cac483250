"""Arrays in a GPU's memory: cupy arrays and torch CUDA tensors, seen alike.

Neither library is loaded here: who passes such an array has loaded it. What copies or converts
does so on the array's device and on the current stream of its library there, in turn with whatever
else is on it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, cast

import numpy as np

from torsh_runtime.arrays.devices import way_out
from torsh_runtime.backends.library.operands import Parts
from torsh_runtime.enumerations import DTYPES
from torsh_runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

FLOAT8 = "float8_"
"""The beginning of the names of all dtypes that are floats of 8 bits."""


class Framework(Protocol):
    """Lists what a library can do with its arrays. Flat ones are contiguous, of one dimension."""

    @property
    def gives_graphs_memory(self) -> bool:
        """Return whether memory that is allocated in a capture serves nothing but that graph."""

    def flat(self, array: Any) -> Any:
        """Return the elements: the array's own memory if it is contiguous, else a copy."""

    def dtype(self, array: Any) -> str:
        """Return the dtype's name."""

    def device(self, array: Any) -> int:
        """Return the number of the device that the array is on."""

    def stream(self, device: int) -> int:
        """Return the handle of the calling thread's current stream of `device`, the current one."""

    def on_device(self, device: int) -> AbstractContextManager[object]:
        """Return a context manager that makes the device the calling thread's current one."""

    def on_stream(self, device: int, handle: int) -> AbstractContextManager[object]:
        """Return a context manager that makes this the library's current stream of the device."""

    def bytes_on(self, device: int, count: int) -> Any:
        """Return a new array of bytes on the device, without contents."""

    def uploaded(self, numbers: NDArray[Any], device: int) -> Any:
        """Return a copy of a numpy array on the device."""

    def downloaded(self, array: Any) -> NDArray[Any]:
        """Return a copy as a numpy array, after all work on the current stream of the array's
        device.
        """

    def address(self, array: Any) -> int:
        """Return the address of the array's memory."""

    def viewed(self, flat: Any, dtype: str) -> Any:
        """Return the same memory as elements of a different dtype."""

    def converted(self, flat: Any, dtype: str) -> Any:
        """Return a copy in a different dtype."""

    def assign(self, array: Any, flat: Any) -> None:
        """Copy the elements into an array of any shape and dtype."""

    def spanning(self, first: Any, last: Any, count: int) -> Any:
        """Return `count` flat arrays as one; None unless `first` and `last` are of one memory.

        The others lie between them, end to end, and are as large as the first.
        """

    def room(self, flat: Any, count: int) -> Any:
        """Return a new flat array, without contents, for `count` such arrays."""


def is_on_gpu(array: object) -> bool:
    """Return whether it is an array in a GPU's memory; False for other objects, too."""
    return not isinstance(array, np.ndarray) and _framework(array) is not None


def framework_of(array: object) -> Framework:
    """Return the framework of an array.

    Raises TypeError if it is not an array on a CUDA device or its dtype is not supported.
    """
    framework = _framework(array)
    if framework is None:
        kind, device = f"{type(array).__module__}.{type(array).__name__}", _device_type(array)
        if device not in ("cpu", "cuda"):
            raise TypeError(f"the nccl backend takes no {kind} on {device}: {way_out(device)}")
        raise TypeError(
            f"the nccl backend takes cupy arrays and torch CUDA tensors, not {kind}; use backend "
            f"'native' for arrays in the processor's memory, 'cpu:native,cuda:nccl' for both"
        )
    dtype = framework.dtype(array)
    if dtype not in DTYPES and not dtype.startswith(FLOAT8):
        known = ", ".join((*DTYPES, "float8"))
        raise TypeError(f"dtype {dtype} is not supported on GPUs; use one of {known}")
    return framework


def _device_type(array: object) -> str:
    """Return the kind of device that a torch tensor is on; "cpu" for other objects."""
    torch: Any = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(array, torch.Tensor)
    return str(cast(Any, array).device.type) if is_tensor else "cpu"


def _framework(array: object) -> Framework | None:
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return _Cupy(cupy)
    if torch is not None and isinstance(array, torch.Tensor) and array.is_cuda:
        return _Torch(torch)
    return None


@dataclass(frozen=True)
class _Cupy:
    cupy: Any
    gives_graphs_memory: ClassVar[bool] = False

    def flat(self, array: Any) -> Any:
        with array.device:
            return self.cupy.ascontiguousarray(array).reshape(-1)

    def dtype(self, array: Any) -> str:
        return str(array.dtype.name)

    def device(self, array: Any) -> int:
        return int(array.device.id)

    def stream(self, device: int) -> int:
        return int(self.cupy.cuda.get_current_stream().ptr)

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        with self.cupy.cuda.Device(device):
            yield

    @contextmanager
    def on_stream(self, device: int, handle: int) -> Iterator[None]:
        with self.on_device(device), self.cupy.cuda.ExternalStream(handle, device):
            yield

    def bytes_on(self, device: int, count: int) -> Any:
        with self.cupy.cuda.Device(device):
            return self.cupy.empty(count, "uint8")

    def uploaded(self, numbers: NDArray[Any], device: int) -> Any:
        with self.cupy.cuda.Device(device):
            return self.cupy.asarray(numbers)

    def downloaded(self, array: Any) -> NDArray[Any]:
        with array.device:
            copied: NDArray[Any] = array.get()
        return copied

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def viewed(self, flat: Any, dtype: str) -> Any:
        return flat.view(dtype)

    def converted(self, flat: Any, dtype: str) -> Any:
        with flat.device:
            return flat.astype(dtype)

    def assign(self, array: Any, flat: Any) -> None:
        with array.device:
            array[...] = flat.reshape(array.shape)

    def spanning(self, first: Any, last: Any, count: int) -> Any:
        if first.data.mem.ptr != last.data.mem.ptr:
            return None
        tricks = self.cupy.lib.stride_tricks
        return tricks.as_strided(first, (first.size * count,), (first.itemsize,))

    def room(self, flat: Any, count: int) -> Any:
        with flat.device:
            return self.cupy.empty(flat.size * count, flat.dtype)


@dataclass(frozen=True)
class _Torch:
    torch: Any
    gives_graphs_memory: ClassVar[bool] = True

    def flat(self, array: Any) -> Any:
        if array.layout is not self.torch.strided or array.is_conj() or array.is_neg():
            raise TypeError("sparse and lazily conjugated tensors are not supported; make a copy")
        return array.detach().contiguous().view(-1)

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Any) -> int:
        return int(array.device.index)

    def stream(self, device: int) -> int:
        return int(self.torch.cuda.current_stream(device).cuda_stream)

    def on_device(self, device: int) -> AbstractContextManager[object]:
        is_current = self.torch.cuda.current_device() == device
        return nullcontext() if is_current else self.torch.cuda.device(device)

    def on_stream(self, device: int, handle: int) -> AbstractContextManager[object]:
        cuda = self.torch.cuda
        return cast(
            AbstractContextManager[object], cuda.stream(cuda.ExternalStream(handle, device))
        )

    def bytes_on(self, device: int, count: int) -> Any:
        return self.torch.empty(count, dtype=self.torch.uint8, device=f"cuda:{device}")

    def uploaded(self, numbers: NDArray[Any], device: int) -> Any:
        return self.torch.as_tensor(numbers, device=f"cuda:{device}")

    def downloaded(self, array: Any) -> NDArray[Any]:
        copied: NDArray[Any] = array.cpu().numpy()
        return copied

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def viewed(self, flat: Any, dtype: str) -> Any:
        if flat.is_complex() and dtype.startswith("float"):
            return self.torch.view_as_real(flat).view(-1)
        return flat.view(getattr(self.torch, dtype))

    def converted(self, flat: Any, dtype: str) -> Any:
        return flat.to(getattr(self.torch, dtype))

    def assign(self, array: Any, flat: Any) -> None:
        array.detach().copy_(flat.view(array.shape))

    def spanning(self, first: Any, last: Any, count: int) -> Any:
        if first.untyped_storage().data_ptr() != last.untyped_storage().data_ptr():
            return None
        return first.as_strided((first.numel() * count,), (1,))

    def room(self, flat: Any, count: int) -> Any:
        return flat.new_empty(flat.numel() * count)


class Operand:
    """An array of a call, contiguous."""

    def __init__(self, array: object) -> None:
        """Wrap an array. Raises TypeError if collectives do not take it."""
        self.framework = framework_of(array)
        self.array = array
        self.dtype = Dtype(self.framework.dtype(array))
        self.flat = self.framework.flat(array)
        self.size = len(self.flat)

    @property
    def bytes(self) -> Any:
        """Return the flat array's memory as bytes."""
        return self.framework.viewed(self.flat, "uint8")

    @property
    def is_copied(self) -> bool:
        """Return whether the flat array is a copy rather than the array's own memory."""
        return self.framework.address(self.flat) != self.framework.address(self.array)

    def finish(self) -> None:
        """Copy what was put into the flat array to the array itself, if that is another one."""
        if self.is_copied:
            self.framework.assign(self.array, self.flat)

    def check_device(self, device: int) -> None:
        """Raise ValueError unless the array is on that device."""
        own = self.framework.device(self.array)
        if own != device:
            raise ValueError(
                f"the array is on CUDA device {own}, but the group was made on device {device}"
            )


def memories(parts: Parts[Operand]) -> Iterator[tuple[int, Any]]:
    """Yield the ranks whose part has elements, with its memory."""
    if len(parts.arrays) != 1:
        yield from ((rank, each.bytes) for rank, each in enumerate(parts.arrays) if each.size)
        return
    [whole] = parts.arrays
    content, end = whole.bytes, 0
    width = len(content) // max(whole.size, 1)
    for rank, size in enumerate(parts.sizes):
        begin, end = end, end + size * width
        if size:
            yield rank, content[begin:end]


def whole_of(parts: Parts[Operand]) -> Operand | None:
    """Return the one array that equal parts lie in, end to end; None if they do not."""
    first, last = parts.arrays[0], parts.arrays[-1]
    address, width = first.framework.address(first.flat), first.flat.nbytes
    for place, part in enumerate(parts.arrays):
        if part.is_copied or part.framework.address(part.flat) != address + place * width:
            return None
    whole = first.framework.spanning(first.flat, last.flat, len(parts.arrays))
    return None if whole is None else Operand(whole)


def staging_of(parts: Parts[Operand]) -> tuple[Operand, list[Any]]:
    """Return a new array for equal parts, end to end, and its pieces."""
    first = parts.arrays[0]
    whole = first.framework.room(first.flat, len(parts.arrays))
    ends = range(first.size, len(whole) + 1, first.size)
    return Operand(whole), [whole[end - first.size : end] for end in ends]


class Dtype(NamedTuple):
    """A dtype by name, whichever library's it is."""

    name: str


def on_device(operands: Sequence[Operand], device: int) -> AbstractContextManager[object]:
    """Return a context manager that makes the device the calling thread's current one."""
    return _within([framework.on_device(device) for framework in _frameworks(operands)])


def on_stream(
    operands: Sequence[Operand], device: int, handle: int
) -> AbstractContextManager[object]:
    """Return a context manager in which the arrays' libraries put their work on this stream."""
    return _within([framework.on_stream(device, handle) for framework in _frameworks(operands)])


def _within(blocks: Sequence[AbstractContextManager[object]]) -> AbstractContextManager[object]:
    if len(blocks) == 1:
        return blocks[0]  # as most often; a stack takes a while
    with ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        return stack.pop_all()


def _frameworks(operands: Sequence[Operand]) -> set[Framework]:
    return {operand.framework for operand in operands}


def make_current(number: int) -> None:
    """Make a GPU the calling thread's current one, by a library that is loaded already, if any."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.set_device(number)
    elif cupy is not None:
        cupy.cuda.Device(number).use()
    else:
        import_module("cuda.core").Device(number).set_current()


def loaded_framework() -> Framework:
    """Return the framework of a loaded array library that uses CUDA. Raises ConfigError without
    one.
    """
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return _Torch(torch)
    if cupy is None:
        raise ConfigError("no array library that uses CUDA is loaded: import cupy or torch first")
    return _Cupy(cupy)
