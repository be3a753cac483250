"""CUDA without a GPU: devices of ordinary memory, with cuda.core's names and signatures.

What is put on a stream is not run before somebody asks whether it is done, and then only what
that depends on is run: whoever reads or writes without having waited sees old contents. What would
be undefined on a GPU, or a crash of the process, is noted in `Machine.faults`.

Memory is in fake_memory, captures of streams in graphs in fake_graphs.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from support.fake_graphs import Capture, Captures
from support.fake_graphs import CUDAError as CUDAError
from support.fake_memory import Block as Block
from support.fake_memory import Memory

_PATIENCE = 60.0
"""Seconds after which a wait on the processor is given up; a GPU would hang."""
LEGACY = (0, 1)
"""Handles of the default stream of whichever device is current."""


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


class Machine(Memory, Captures):
    """Several devices, used by the threads of this process."""

    def __init__(self, gpus: int) -> None:
        super().__init__()
        self.gpus = [Gpu(number) for number in range(gpus)]
        self.capability = (9, 0)
        """The compute capability of all devices."""
        self.cliques: dict[bytes, Any] = {}
        """NCCL's, by their unique ids."""
        self._progress = 0
        self._handles = itertools.count(0x1000, 0x10)

    @property
    def current(self) -> Gpu:
        """The calling thread's current device."""
        gpu: Gpu = getattr(self.thread, "gpu", self.gpus[0])
        return gpu

    @current.setter
    def current(self, gpu: Gpu) -> None:
        self.thread.gpu = gpu

    @property
    def context(self) -> Gpu:
        """The device whose context is current for the driver: none in a thread before its first
        call of the runtime, which takes device 0 for the current one already."""
        if not hasattr(self.thread, "gpu"):
            raise CUDAError("CUDA_ERROR_INVALID_CONTEXT: no context is current in this thread")
        return self.current

    def gpu(self, number: int) -> Gpu:
        if number not in range(len(self.gpus)):
            raise CUDAError("CUDA_ERROR_INVALID_DEVICE: no such device")
        return self.gpus[number]

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

    def is_past(self, task: Task) -> bool:
        return self._finish(task)

    def new_task(self, queue: Queue, run: Callable[[], bool]) -> Task:
        return Task(queue, (), run)

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

    @property
    def compute_capability(self) -> tuple[int, int]:
        return machine().capability

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
