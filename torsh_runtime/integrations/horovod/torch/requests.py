"""What this rank has asked for, and what became of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from torsh_runtime.integrations.horovod.torch.calls import Call, Operand

Tensor = torch.Tensor


class Request:
    """A call with its tensors. It is the handle that asynchronous functions return.

    Its tensors must not be changed, and results not be read, before it is done.
    """

    def __init__(
        self,
        call: Call,
        tensors: Sequence[Tensor],
        *,
        in_place: bool = False,
        single: bool = True,
        content: bytes = b"",
    ) -> None:
        """in_place: whether results take the place of `tensors`. single: whether the result is a
        tensor, and not a list of them. content: a pickled object, of calls without tensors."""
        self.call = call
        self.tensors = tensors
        self.content = content
        self.in_place = in_place
        self.single = single
        self._over = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._ready = _record_event(tensors)

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._over.is_set()

    def finish(self, result: Any) -> None:
        """It went well."""
        self._result = result
        self._over.set()

    def fail(self, error: BaseException) -> None:
        """It went wrong."""
        self._error = error
        self._over.set()

    def wait_for_tensors(self) -> None:
        """Wait until the GPU has written what the tensors hold."""
        if self._ready is not None:
            self._ready.synchronize()

    def wait(self) -> Any:
        """Wait until it is over. The result; what went wrong is raised."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._result


def operand(tensor: Tensor) -> Operand:
    """A tensor, as other ranks hear of it. TypeError for one that is not dense."""
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"a {tensor.layout} tensor cannot take part: make it dense with to_dense(), or use "
            f"sparse_allreduce_async()"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Operand(dtype, tuple(tensor.shape), tensor.device.type)


def _record_event(tensors: Sequence[Tensor]) -> Any:
    if any(each.is_cuda for each in tensors):
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event
    return None
