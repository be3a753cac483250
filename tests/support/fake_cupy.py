"""The part of cupy that moves data and says where they are, on the devices of fake_cuda.

As in cupy, work goes to the calling thread's current stream of the current device, and arrays of
other devices are refused; an array's memory is free as soon as nobody refers to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
from support.fake_cuda import Block, Gpu, Queue, machine

uint8 = np.uint8
thread = threading.local()


def current_queue() -> Queue:
    chosen: Queue = getattr(thread, "streams", {}).get(
        machine().current.number, machine().current.default
    )
    return chosen


@contextmanager
def chosen_stream(queue: Queue) -> Iterator[None]:
    streams = thread.__dict__.setdefault("streams", {})
    before = streams.get(queue.gpu.number)
    streams[queue.gpu.number] = queue
    try:
        yield
    finally:
        del streams[queue.gpu.number]  # which would be left to later machines
        if before is not None:
            streams[queue.gpu.number] = before


def launch(run: Callable[..., object], *arrays: ndarray) -> None:
    """Call run(memory of each array) on the current stream. That keeps no array alive."""
    for array in arrays:
        if array.block.gpu is not machine().current:
            raise ValueError(
                f"Array device must be same as the current device: array device = "
                f"{array.block.gpu.number} while current = {machine().current.number}"
            )
    memory = [array.contents for array in arrays]

    def once() -> bool:
        run(*memory)
        return True

    machine().current = machine().current  # the runtime makes its context the driver's
    machine().put(current_queue(), once)


class ndarray:  # noqa: N801  (cupy's name)
    def __init__(self, block: Block, view: Any) -> None:
        self.block = block
        self.contents = view
        """The memory itself, as the device sees it: not for the code under test."""

    dtype = property(lambda self: self.contents.dtype)
    shape = property(lambda self: self.contents.shape)
    size = property(lambda self: self.contents.size)
    ndim = property(lambda self: self.contents.ndim)
    nbytes = property(lambda self: self.contents.nbytes)
    itemsize = property(lambda self: self.contents.itemsize)
    device = property(lambda self: Device(self.block.gpu.number))
    flags = property(lambda self: self.contents.flags)

    def __len__(self) -> int:
        return len(self.contents)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self._address(), mem=SimpleNamespace(ptr=self.block.address))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address(), False),
            "strides": None if self.flags.c_contiguous else self.contents.strides,
            "version": 3,
            "stream": current_queue().handle or 1,
        }

    def _address(self) -> int:
        begin: int = self.contents.__array_interface__["data"][0]
        base: int = self.block.bytes.__array_interface__["data"][0]
        return self.block.address + (begin - base if self.size else 0)

    def _viewed(self, view: Any) -> ndarray:
        return ndarray(self.block, view)

    def reshape(self, *shape: Any) -> ndarray:
        view = self.contents.reshape(*shape)
        assert view.size == 0 or np.may_share_memory(view, self.contents), "it would be a copy"
        return self._viewed(view)

    def view(self, dtype: Any) -> ndarray:
        return self._viewed(self.contents.view(dtype))

    def __getitem__(self, key: Any) -> ndarray:
        return self._viewed(self.contents[key] if key is not ... else self.contents)

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        made = empty(self.shape, dtype)
        launch(_convert, made, self)
        return made

    def copy(self) -> ndarray:
        return self.astype(self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if isinstance(value, ndarray):
            launch(_convert, target, value)
        else:
            launch(lambda memory: _convert(memory, np.asarray(value)), target)

    def __iand__(self, other: int) -> ndarray:
        launch(lambda memory: np.bitwise_and(memory, other, out=memory), self)
        return self

    def __itruediv__(self, other: int) -> ndarray:
        launch(lambda memory: np.divide(memory, other, out=memory), self)
        return self

    def get(self) -> Any:
        found = []
        launch(lambda memory: found.append(memory.copy()), self)
        machine().wait(machine().last(current_queue()))
        return found[0]


def empty(shape: Any, dtype: Any = np.float64) -> ndarray:
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    block = machine().allocate(current_queue(), count * dtype.itemsize)
    return ndarray(block, block.bytes.view(dtype).reshape(shape))


def zeros(shape: Any, dtype: Any = np.float64) -> ndarray:
    made = empty(shape, dtype)
    made[...] = 0
    return made


def asarray(array: Any) -> ndarray:
    if isinstance(array, ndarray):
        return array
    if current_queue().capture is not None:  # it is copied from memory that is not pinned
        machine().check_no_capture()
    copied = np.array(array)
    made = empty(copied.shape, copied.dtype)
    made[...] = copied
    return made


def ascontiguousarray(array: ndarray) -> ndarray:
    if array.flags.c_contiguous:
        return array if array.ndim else array.reshape(1)
    return array.astype(array.dtype)


class Device:
    def __init__(self, device: int | None = None) -> None:
        self.id = machine().gpu(machine().current.number if device is None else device).number
        self._before: list[Any] = []

    def use(self) -> None:
        machine().current = machine().gpu(self.id)

    def __enter__(self) -> Device:
        self._before.append(machine().current)
        self._switch(machine().gpu(self.id))
        return self

    def __exit__(self, *_: object) -> None:
        self._switch(self._before.pop())

    def _switch(self, gpu: Gpu) -> None:
        if machine().current is not gpu:
            machine().current = gpu


class ExternalStream:
    def __init__(self, ptr: int, device_id: int = -1) -> None:
        gpu = machine().current if device_id < 0 else machine().gpu(device_id)
        self._queue = machine().queue(ptr, gpu)
        self.ptr = ptr
        self._entered: list[Any] = []

    def __enter__(self) -> ExternalStream:
        self._entered.append(chosen_stream(self._queue))
        self._entered[-1].__enter__()
        return self

    def __exit__(self, *facts: object) -> None:
        self._entered.pop().__exit__(*facts)

    def synchronize(self) -> None:
        machine().wait(machine().last(self._queue))


class Stream(ExternalStream):
    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        queue = machine().new_queue(machine().current, blocking=not non_blocking)
        super().__init__(queue.handle)


def get_current_stream(device_id: int = -1) -> Any:
    gpu = machine().current if device_id < 0 else machine().gpu(device_id)
    with Device(gpu.number):
        return SimpleNamespace(ptr=current_queue().handle)


def _as_strided(x: ndarray, shape: Any, strides: Any) -> ndarray:
    begin = x._address() - x.block.address
    return ndarray(x.block, np.ndarray(shape, x.dtype, x.block.bytes, begin, strides))


lib = SimpleNamespace(stride_tricks=SimpleNamespace(as_strided=_as_strided))
cuda = SimpleNamespace(
    Device=Device,
    Stream=Stream,
    ExternalStream=ExternalStream,
    get_current_stream=get_current_stream,
)


def _convert(target: Any, source: Any) -> None:
    with np.errstate(all="ignore"):
        np.copyto(target, source, casting="unsafe")
