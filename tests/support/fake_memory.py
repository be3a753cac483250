"""Memory of fake devices, which is freed in the order of the stream it was allocated on.

What that stream had got by then may still use it, and so may what is waited for by that. Everything
else may find it used for something else already: that is a fault.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from support.fake_cuda import Gpu, Queue, Task


class Block:
    """Memory of a device."""

    def __init__(self, gpu: Gpu, address: int, num_bytes: int) -> None:
        self.gpu = gpu
        self.address = address
        self.bytes = np.full(num_bytes, 0xCD, np.uint8)


class Memory(ABC):
    """The memory of several devices."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.moved = threading.Condition(threading.RLock())
        self._blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()
        self._contents: dict[int, tuple[Gpu, Any]] = {}
        self._freed: deque[tuple[int, Task | None]] = deque()
        self._reusing = False
        self._indices = itertools.count(1)

    @abstractmethod
    def is_past(self, task: Task) -> bool:
        """Whether a task could be over by now; then it is. Called with `moved`."""

    def allocate(self, queue: Queue, num_bytes: int) -> Block:
        """Memory of the stream's device, to be freed in the order of that stream."""
        index = next(self._indices)
        block = Block(queue.gpu, index << 32, num_bytes)
        self._blocks[index] = block
        self._contents[index] = queue.gpu, block.bytes
        weakref.finalize(block, self._free, index, queue).atexit = False
        return block

    def bytes_alive(self, gpu: Gpu) -> int:
        """The bytes of what the program has not let go of on a device."""
        blocks = list(self._blocks.values())
        return sum(len(block.bytes) for block in blocks if block.gpu is gpu)

    def _free(self, index: int, queue: Queue) -> None:
        tasks = queue.tasks
        self._freed.append((index, tasks[-1] if tasks else None))

    def reuse(self) -> None:
        """Give up all memory that could have been used for something else by now."""
        with self.moved:
            if self._reusing:
                return
            self._reusing = True
            try:
                for _ in range(len(self._freed)):
                    index, last = self._freed.popleft()
                    if last is None or self.is_past(last):
                        del self._contents[index]
                    else:
                        self._freed.append((index, last))
            finally:
                self._reusing = False

    def memory(self, gpu: Gpu, address: int, num_bytes: int) -> Any:
        """The bytes at an address; None, and a fault, unless that much is allocated there."""
        if num_bytes == 0:
            return np.empty(0, np.uint8)
        where, content = self._contents.get(address >> 32, (gpu, ()))
        offset = address & 0xFFFFFFFF
        if offset + num_bytes > len(content):
            self.faults.append(f"{num_bytes} bytes at {address:#x} are used but not allocated")
            return None
        if where is not gpu:
            self.faults.append(f"device {gpu.number} uses memory of device {where.number}")
            return None
        return content[offset : offset + num_bytes]
