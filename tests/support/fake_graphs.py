"""Captures of fake streams in graphs, by CUDA's documented rules.

What is put on a stream that is being captured belongs to the graph and is not run. A stream that
waits for a captured event is captured with it, and has to be joined before the capture ends. What
a capture forbids raises CUDAError and ends the capture, as it does on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.fake_cuda import Queue

GLOBAL, THREAD_LOCAL, RELAXED = range(3)
"""The modes of a capture, and of a thread."""
Node = Callable[["Queue"], object]
"""Puts one thing of a graph on a stream."""


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
