"""Implements torch's Work over torsh_runtime's."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C import _current_graph_task_id, _distributed_c10d

from torsh_runtime.backends.work import COMPLETED, Work
from torsh_runtime.integrations.torch import futures
from torsh_runtime.integrations.torch.compiling import not_compiled

c10d: Any = _distributed_c10d
_queue_callback = torch.autograd.Variable._execution_engine.queue_callback
_NO_TIMEOUT = timedelta(0)


@not_compiled
class TorshWork(c10d.Work):  # type: ignore[misc]
    """Represents one or several operations under way, and the tensors that they write.

    Waiting raises the CommError with which an operation ended.
    """

    def __init__(self, works: Sequence[Work], outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.parts = works
        self._outputs = outputs

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Wait until all operations are complete, and return True.

        Raises CommTimeout if a timeout is given and passes before that.
        """
        if timeout <= _NO_TIMEOUT:
            for work in self.parts:
                work.wait()
            return True
        deadline = time.monotonic() + timeout.total_seconds()
        for work in self.parts:
            work.wait(max(deadline - time.monotonic(), 0.0))
        return True

    def synchronize(self) -> None:
        """Call wait(), as there is no stream that could wait instead."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether all operations have succeeded or failed."""
        return all(work.done() for work in self.parts)

    def is_success(self) -> bool:
        """Return whether all operations have succeeded."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of a failed operation, or None."""
        errors = (work.exception() for work in self.parts)
        return next((error for error in errors if error is not None), None)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that hold the result once it is complete."""
        return list(self._outputs)

    def source_rank(self) -> int:
        """Return the rank in the group that sent a received message; -1 for other operations."""
        source = self.parts[-1].source if self.parts else None
        return -1 if source is None else source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of `result()`.

        It fails with a RuntimeError that quotes the CommError. In a backward pass the future does
        not fail, but the pass ends with the CommError.
        """
        if self.is_success():
            return futures.completed(self._outputs)
        over: torch.futures.Future[Any] = torch.futures.Future()
        if in_backward():
            _queue_callback(lambda: _queue_callback(self.synchronize))
            finished = over
        else:  # C++ sees only errors that a callback raises
            finished = over.then(lambda _: self.wait())
        _when_done(list(self.parts), over)
        return futures.after(finished, self._outputs)


def in_backward() -> bool:
    """Return whether this is called in a backward pass, where DDP's reducer is the caller.

    A reducer cannot be used any more once a call or a future of it has failed. So the pass
    continues, and fails at its end, after the reducer's own callback. Then the reducer can do the
    next step, with other members.
    """
    return bool(_current_graph_task_id() != -1)


def _when_done(works: list[Work], over: torch.futures.Future[Any]) -> None:
    """Complete the future when all the works are over."""
    if works:
        works.pop().add_done_callback(lambda _: _when_done(works, over))
    else:
        over.set_result(None)


DONE = TorshWork((COMPLETED,), ())
"""Result of calls that asked for no Work. It is complete, and holds nothing."""
