"""Arrays in a GPU's memory: cupy arrays and torch CUDA tensors, seen alike.

Neither library is loaded here: who passes such an array has loaded it. What copies or converts
does so on the current stream of its library, in turn with whatever else is on it.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Protocol

from torsh_runtime.status import DTYPES


class Framework(Protocol):
    """What a library can do with its arrays. Flat ones are contiguous, of one dimension."""

    def flat(self, array: Any) -> Any:
        """The elements: in the array's own memory where that is contiguous, else a copy."""

    def dtype(self, array: Any) -> str:
        """The dtype's name."""

    def device(self, array: Any) -> int:
        """The number of the device the array is on."""

    def stream(self, array: Any) -> int:
        """The handle of the current stream of the array's device."""

    def address(self, array: Any) -> int:
        """Where its memory begins."""

    def viewed(self, flat: Any, dtype: str) -> Any:
        """The same memory as elements of another dtype."""

    def converted(self, flat: Any, dtype: str) -> Any:
        """A copy in another dtype."""

    def assign(self, array: Any, flat: Any) -> None:
        """Copy the elements into an array of any shape and dtype."""


def framework_of(array: object) -> Framework:
    """Whose array it is. TypeError if it is none on a CUDA device, or of no dtype of ours."""
    framework: Framework | None = None
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        framework = _Cupy(cupy)
    elif torch is not None and isinstance(array, torch.Tensor) and array.is_cuda:
        framework = _Torch(torch)
    if framework is None:
        kind = f"{type(array).__module__}.{type(array).__name__}"
        raise TypeError(
            f"the nccl backend takes cupy arrays and torch CUDA tensors, not {kind}; use backend "
            f"'native' for arrays in the processor's memory"
        )
    if framework.dtype(array) not in DTYPES:
        raise TypeError(
            f"dtype {framework.dtype(array)} is not supported; use one of {', '.join(DTYPES)}"
        )
    return framework


class _Cupy:
    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def flat(self, array: Any) -> Any:
        return self._cupy.ascontiguousarray(array).reshape(-1)

    def dtype(self, array: Any) -> str:
        return str(array.dtype.name)

    def device(self, array: Any) -> int:
        return int(array.device.id)

    def stream(self, array: Any) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def address(self, array: Any) -> int:
        return int(array.data.ptr)

    def viewed(self, flat: Any, dtype: str) -> Any:
        return flat.view(dtype)

    def converted(self, flat: Any, dtype: str) -> Any:
        return flat.astype(dtype)

    def assign(self, array: Any, flat: Any) -> None:
        array[...] = flat.reshape(array.shape)


class _Torch:
    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def flat(self, array: Any) -> Any:
        if array.layout is not self._torch.strided or array.is_conj() or array.is_neg():
            raise TypeError("sparse and lazily conjugated tensors are not supported; make a copy")
        return array.detach().contiguous().view(-1)

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def device(self, array: Any) -> int:
        return int(array.device.index)

    def stream(self, array: Any) -> int:
        return int(self._torch.cuda.current_stream(array.device).cuda_stream)

    def address(self, array: Any) -> int:
        return int(array.data_ptr())

    def viewed(self, flat: Any, dtype: str) -> Any:
        if flat.is_complex() and dtype.startswith("float"):
            return self._torch.view_as_real(flat).view(-1)
        return flat.view(getattr(self._torch, dtype))

    def converted(self, flat: Any, dtype: str) -> Any:
        return flat.to(getattr(self._torch, dtype))

    def assign(self, array: Any, flat: Any) -> None:
        array.detach().copy_(flat.view(array.shape))


class Operand:
    """An array of a call, contiguous."""

    def __init__(self, array: object) -> None:
        """TypeError for an array that collectives do not take."""
        self.framework = framework_of(array)
        self.array = array
        self.dtype = Dtype(self.framework.dtype(array))
        self.flat = self.framework.flat(array)
        self.size = len(self.flat)

    @property
    def bytes(self) -> Any:
        """The flat array's memory."""
        return self.framework.viewed(self.flat, "uint8")

    @property
    def stream(self) -> int:
        """The handle of the stream that the calling thread puts its work on."""
        return self.framework.stream(self.array)

    def finish(self) -> None:
        """Copy what was put into the flat array to the array itself, if that is another one."""
        framework = self.framework
        if framework.address(self.flat) != framework.address(self.array):
            framework.assign(self.array, self.flat)

    def check_device(self, device: int) -> None:
        """ValueError unless the array is on that device."""
        own = self.framework.device(self.array)
        if own != device:
            raise ValueError(
                f"the array is on CUDA device {own}, but the group was made on device {device}"
            )


class Dtype(NamedTuple):
    """A dtype by name, whichever library's it is."""

    name: str


def one_byte(device: int) -> object:
    """A byte 0 on the device, of whichever library is loaded."""
    cupy, torch = sys.modules.get("cupy"), sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return torch.zeros(1, dtype=torch.uint8, device=f"cuda:{device}")
    if cupy is None:
        raise RuntimeError("no array library that uses CUDA is loaded: import cupy or torch first")
    with cupy.cuda.Device(device):
        return cupy.zeros(1, cupy.uint8)
