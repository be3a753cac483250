"""Captures of fake streams in graphs, by CUDA's documented rules.

What is put on a stream that is being captured belongs to the graph and is not run. A stream that
waits for a captured event is captured with it, and has to be joined before the capture ends. What
a capture forbids raises CUDAError and ends the capture, as it does on a GPU.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.fake_cuda import Gpu, Queue, Task

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
"""The modes of a capture, and of a thread."""
Node = Callable[["Queue"], object]
"""Puts one thing of a graph on a stream."""


class CUDAError(Exception):
    """What cuda.core raises when the driver refuses."""


class Capture:
    """A capture that goes on: the graph so far."""

    def __init__(self, origin: Queue, mode: int) -> None:
        self.origin = origin
        self.mode = mode
        self.thread = threading.get_ident()
        self.queues = {origin}
        self.unjoined: set[Queue] = set()
        """Other streams that have got something since the first one last waited for them."""
        self.nodes: list[Node] = []
        self.is_invalid = False

    def forbids(self, own_mode: int) -> bool:
        """Whether the calling thread, of that mode, may not do what could disturb a capture."""
        if own_mode == RELAXED or self.mode == RELAXED:
            return False
        if self.thread == threading.get_ident():
            return True
        return self.mode == GLOBAL and own_mode == GLOBAL


class Graph:
    """What was captured."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    def launch(self, queue: Queue) -> None:
        """Put everything on a stream, in the order in which it was captured."""
        for node in self._nodes:
            node(queue)


class Captures(ABC):
    """The captures of streams of several devices."""

    gpus: list[Gpu]

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.local()

    @abstractmethod
    def new_task(self, queue: Queue, run: Callable[[], bool]) -> Task:
        """A task that is on no stream."""

    def captured_queues(self) -> list[Queue]:
        return [queue for gpu in self.gpus for queue in gpu.queues if queue.capture is not None]

    def exchange_mode(self, mode: int) -> int:
        """Set the calling thread's mode towards captures; the one before."""
        before: int = getattr(self.thread, "mode", GLOBAL)
        self.thread.mode = mode
        return before

    def check_no_capture(self) -> None:
        """Refuse what a capture forbids the calling thread, and end the capture."""
        mode = getattr(self.thread, "mode", GLOBAL)
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

    def put_node(self, queue: Queue, node: Callable[[Queue], object]) -> Task:
        """Put something on a stream that is being captured, which `node` does at each replay."""
        return self._captured(queue, node, bool)

    def _captured(
        self, queue: Queue, node: Callable[[Queue], object], run: Callable[[], bool]
    ) -> Task:
        assert queue.capture is not None
        queue.capture.nodes.append(node)
        task = self.new_task(queue, run)
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
