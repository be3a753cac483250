"""CUDA without a GPU: devices of ordinary memory, with cuda.core's names and signatures.

What is put on a stream is not run before somebody asks whether it is done, and then only what
that depends on is run: whoever reads or writes without having waited sees old contents. What would
be undefined on a GPU, or a crash of the process, is noted in `Machine.faults`.

Memory is freed in the order of the stream that was current when it was allocated: what that had
got by then may still use it, and what has been made to wait by that. `Machine.bytes_alive` counts
what the program still holds. `Machine.capture` captures a stream in a graph (see fake_graphs).
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from support.fake_graphs import GLOBAL, Capture, Graph

_PATIENCE = 60.0
"""Seconds after which a wait on the processor is given up; a GPU would hang."""
LEGACY = (0, 1)
"""Handles of the default stream of whichever device is current."""


class CUDAError(Exception):
    """What cuda.core raises when the driver refuses."""


class Task:
    """One thing on a stream. `run` says whether it could be done by now."""

    def __init__(self, queue: Queue, needs: Sequence[Task], run: Callable[[], bool]) -> None:
        self.queue = queue
        self.needs = [need for need in needs if not need.done]
        self.run = run
        self.done = False
        self.busy = False
        self.capture: Capture | None = None

    def finish(self) -> None:
        self.done = True
        self.needs, self.run = [], bool  # what they hold on to goes


class Queue:
    """A stream as the device sees it."""

    def __init__(self, gpu: Gpu, handle: int, blocking: bool) -> None:
        self.gpu = gpu
        self.handle = handle
        self.blocking = blocking
        self.destroyed = False
        self.tasks: deque[Task] = deque()
        self.capture: Capture | None = None


class Gpu:
    """One device."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.default = Queue(self, 0, blocking=True)
        self.queues = [self.default]


class Block:
    """Memory of a device."""

    def __init__(self, gpu: Gpu, address: int, num_bytes: int) -> None:
        self.gpu = gpu
        self.address = address
        self.bytes = np.full(num_bytes, 0xCD, np.uint8)


class Machine:
    """Several devices, used by the threads of this process."""

    def __init__(self, gpus: int) -> None:
        self.gpus = [Gpu(number) for number in range(gpus)]
        self.faults: list[str] = []
        self.cliques: dict[bytes, Any] = {}
        """NCCL's, by their unique ids."""
        self.moved = threading.Condition(threading.RLock())
        self._progress = 0
        self._handles = itertools.count(0x1000, 0x10)
        self._blocks: weakref.WeakValueDictionary[int, Block] = weakref.WeakValueDictionary()
        self._contents: dict[int, tuple[Gpu, Any]] = {}
        self._freed: deque[tuple[int, Task | None]] = deque()
        self._reusing = False
        self._indices = itertools.count(1)
        self._thread = threading.local()

    @property
    def current(self) -> Gpu:
        """The calling thread's current device."""
        gpu: Gpu = getattr(self._thread, "gpu", self.gpus[0])
        return gpu

    @current.setter
    def current(self, gpu: Gpu) -> None:
        self._thread.gpu = gpu

    @property
    def context(self) -> Gpu:
        """The device whose context is current for the driver: none in a thread before its first
        call of the runtime, which takes device 0 for the current one already."""
        if not hasattr(self._thread, "gpu"):
            raise CUDAError("CUDA_ERROR_INVALID_CONTEXT: no context is current in this thread")
        return self.current

    def gpu(self, number: int) -> Gpu:
        if number not in range(len(self.gpus)):
            raise CUDAError("CUDA_ERROR_INVALID_DEVICE: no such device")
        return self.gpus[number]

    def allocate(self, queue: Queue, num_bytes: int) -> Block:
        """Memory of the stream's device, to be freed in the order of that stream."""
        index = next(self._indices)
        block = Block(queue.gpu, index << 32, num_bytes)
        self._blocks[index] = block
        self._contents[index] = queue.gpu, block.bytes
        weakref.finalize(block, self._free, index, queue).atexit = False
        return block

    @property
    def bytes_alive(self) -> int:
        """The bytes of what the program has not let go of."""
        return sum(len(block.bytes) for block in list(self._blocks.values()))

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
                    if last is None or self._finish(last):
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

    def captured_queues(self) -> list[Queue]:
        return [queue for gpu in self.gpus for queue in gpu.queues if queue.capture is not None]

    def exchange_mode(self, mode: int) -> int:
        """Set the calling thread's mode towards captures; the one before."""
        before: int = getattr(self._thread, "mode", GLOBAL)
        self._thread.mode = mode
        return before

    def check_no_capture(self) -> None:
        """Refuse what a capture forbids the calling thread, and end the capture."""
        mode = getattr(self._thread, "mode", GLOBAL)
        for queue in self.captured_queues():
            if queue.capture is not None and queue.capture.forbids(mode):
                queue.capture.is_invalid = True
                raise CUDAError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: a stream is capturing")

    @contextmanager
    def capture(self, queue: Queue, mode: int = GLOBAL) -> Iterator[Graph]:
        """Capture what is put on a stream within the block; the graph is complete after it."""
        if queue is queue.gpu.default:
            raise CUDAError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: it is the default stream")
        capture = queue.capture = Capture(queue, mode)
        try:
            yield Graph(capture.nodes)
        finally:
            for each in capture.queues:
                each.capture = None
        if capture.is_invalid:
            raise CUDAError("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
        if capture.unjoined:
            raise CUDAError("CUDA_ERROR_STREAM_CAPTURE_UNJOINED")

    def new_queue(self, gpu: Gpu, blocking: bool) -> Queue:
        queue = Queue(gpu, next(self._handles), blocking)
        gpu.queues.append(queue)
        return queue

    def queue(self, handle: int, gpu: Gpu | None = None) -> Queue:
        """The stream of this handle; `gpu` is whose default one is meant, None the current's."""
        if handle in LEGACY:
            return (gpu or self.current).default
        for each in self.gpus:
            for queue in each.queues:
                if queue.handle == handle and not queue.destroyed:
                    return queue
        raise CUDAError(f"CUDA_ERROR_INVALID_HANDLE: there is no stream {handle:#x} any more")

    def put(self, queue: Queue, run: Callable[[], bool], needs: Sequence[Task] = ()) -> Task:
        """Put something on a stream, behind what it, and these others, have been given."""
        with self.moved:
            if queue.destroyed:
                raise CUDAError("CUDA_ERROR_INVALID_HANDLE: the stream was destroyed")
            for need in needs:
                self._join(queue, need)
            if queue.capture is not None:
                return self._captured(queue, lambda other: self.put(other, run), run)
            task = Task(queue, [*needs, *self._implied(queue)], run)
            queue.tasks.append(task)
            self.moved.notify_all()
        return task

    def put_node(self, queue: Queue, node: Callable[[Queue], object]) -> Task:
        """Put something on a stream that is being captured, which `node` does at each replay."""
        return self._captured(queue, node, bool)

    def _captured(
        self, queue: Queue, node: Callable[[Queue], object], run: Callable[[], bool]
    ) -> Task:
        assert queue.capture is not None
        queue.capture.nodes.append(node)
        task = Task(queue, (), run)
        task.capture = queue.capture
        queue.capture.unjoined.add(queue)
        queue.capture.unjoined.discard(queue.capture.origin)
        return task

    def _join(self, queue: Queue, need: Task) -> None:
        """Let a stream wait for a task: within one capture, if any."""
        if need.capture is None:
            if queue.capture is not None and not need.done:
                queue.capture.is_invalid = True
                raise CUDAError("CUDA_ERROR_STREAM_CAPTURE_ISOLATION: it waits for other work")
            return
        if need.capture.origin.capture is not need.capture:
            raise CUDAError("CUDA_ERROR_INVALID_VALUE: the event was recorded in a capture")
        queue.capture = need.capture
        queue.capture.queues.add(queue)
        if queue is queue.capture.origin:
            queue.capture.unjoined.discard(need.queue)

    def last(self, queue: Queue) -> Task | None:
        with self.moved:
            return queue.tasks[-1] if queue.tasks else None

    def is_done(self, task: Task | None) -> bool:
        """Whether it is done, after having run whatever it needs and can be run."""
        with self.moved:
            while task is not None and not task.done:
                self._progress = 0
                if not self._finish(task) and not self._progress:
                    return False
        return True

    def wait(self, task: Task | None) -> None:
        """Return when it is done."""
        limit = time.monotonic() + _PATIENCE
        with self.moved:
            while not self.is_done(task):
                if time.monotonic() > limit:
                    raise CUDAError("CUDA_ERROR_TIMEOUT: a device hangs")
                self.moved.wait(1.0)

    def reach(self, task: Task) -> bool:
        """Whether everything that comes before it is done. Called from within `Task.run`."""
        while task.queue.tasks[0] is not task:
            if not self._finish_head(task.queue):
                return False
        return all(map(self._finish, task.needs))

    def note_progress(self) -> None:
        self._progress += 1

    def _finish(self, task: Task) -> bool:
        while not task.done:
            if not self._finish_head(task.queue):
                return False
        return True

    def _finish_head(self, queue: Queue) -> bool:
        head = queue.tasks[0]
        if head.busy:
            return False
        head.busy = True
        try:
            over = all(map(self._finish, head.needs)) and head.run()
        finally:
            head.busy = False
        if over:
            queue.tasks.popleft()
            head.finish()
            self.note_progress()
        return over

    def _implied(self, queue: Queue) -> list[Task]:
        """A default stream waits for the device's blocking ones, and they for it."""
        others = queue.gpu.queues if queue is queue.gpu.default else [queue.gpu.default]
        if not queue.blocking:
            return []
        return [
            each.tasks[-1] for each in others if each.blocking and each.tasks and each is not queue
        ]


_plugged_in: list[Machine] = []


def machine() -> Machine:
    """The one whose devices this module's names are about."""
    return _plugged_in[-1]


def plug_in(gpus: int) -> Machine:
    """Make and be a machine of so many devices."""
    _plugged_in[:] = [Machine(gpus)]
    return _plugged_in[-1]


class Device:
    def __init__(self, device_id: Device | int | None = None) -> None:
        number = machine().current.number if device_id is None else int(device_id)  # type: ignore[call-overload]
        self._gpu = machine().gpu(number)

    def __int__(self) -> int:
        return self._gpu.number

    @property
    def device_id(self) -> int:
        return self._gpu.number

    def set_current(self, ctx: object = None) -> None:
        machine().current = self._gpu

    def create_stream(self, obj: object = None, options: Any = None) -> Stream:
        self._check_current()
        blocking = options is not None and not options.nonblocking
        return Stream._of(_handle=machine().new_queue(self._gpu, blocking).handle)

    def create_event(self, options: object = None) -> Event:
        self._check_current()
        return Event._of(_gpu=self._gpu)

    def sync(self) -> None:
        for queue in self._gpu.queues:
            machine().wait(machine().last(queue))

    def _check_current(self) -> None:
        if machine().context is not self._gpu:
            raise CUDAError("CUDA_ERROR_INVALID_CONTEXT: the device is not the current one")


class Made:
    """What a program cannot make by itself."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("events and streams are made by a device, a stream or from a handle")

    @classmethod
    def _of(cls, **facts: Any) -> Self:
        made = cls.__new__(cls)
        vars(made).update(facts)
        return made


class Event(Made):
    _gpu: Gpu
    _task: Task | None = None

    @property
    def is_done(self) -> bool:
        machine().check_no_capture()
        self._check_not_captured()
        return machine().is_done(self._task)

    def sync(self) -> None:
        machine().check_no_capture()
        self._check_not_captured()
        machine().wait(self._task)

    def _check_not_captured(self) -> None:
        if self._task is not None and self._task.capture is not None:
            raise CUDAError("CUDA_ERROR_CAPTURED_EVENT: the event was recorded in a capture")

    def close(self) -> None:
        self._task = None


class Stream(Made):
    _handle: int

    @staticmethod
    def from_handle(handle: int) -> Stream:
        return Stream._of(_handle=handle)

    @property
    def handle(self) -> int:
        return self._handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)

    def record(self, event: Event | None = None, options: object = None) -> Event:
        queue = machine().queue(self._handle)
        event = event or Event._of(_gpu=machine().context)
        if event._gpu is not queue.gpu:
            raise CUDAError(
                f"CUDA_ERROR_INVALID_HANDLE: an event of device {event._gpu.number} is "
                f"recorded on a stream of device {queue.gpu.number}"
            )
        event._task = machine().put(queue, lambda: True)
        return event

    def wait(self, event_or_stream: Event | Stream) -> None:
        other = event_or_stream
        event = other if isinstance(other, Event) else other.record()
        needs = [event._task] if event._task is not None else []
        machine().put(machine().queue(self._handle), lambda: True, needs)

    def sync(self) -> None:
        machine().check_no_capture()
        machine().wait(machine().last(machine().queue(self._handle)))

    def close(self) -> None:
        if self._handle not in LEGACY:
            machine().queue(self._handle).destroyed = True


class StreamOptions:
    def __init__(self, nonblocking: bool = True, priority: int | None = None) -> None:
        self.nonblocking = nonblocking
        self.priority = priority
