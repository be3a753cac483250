"""Represents this rank's requests and their results."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from torsh_runtime.integrations.horovod.torch.calls import Call, Operand

Tensor = torch.Tensor


class Request:
    """Represents a call with its tensors. Asynchronous functions return it as their handle.

    Before it is done, its tensors must not be changed and its results must not be read.
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
        """Take a call and its tensors.

        in_place: whether results replace `tensors`. single: whether the result is a tensor, not a
            list of tensors. content: a pickled object, for calls without tensors.
        """
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
        """Return whether the request has succeeded or failed."""
        return self._over.is_set()

    def finish(self, result: Any) -> None:
        """Record the result."""
        self._result = result
        self._over.set()

    def fail(self, error: BaseException) -> None:
        """Record the error."""
        self._error = error
        self._over.set()

    def wait_for_tensors(self) -> None:
        """Wait until the GPU has written the tensors."""
        if self._ready is not None:
            self._ready.synchronize()

    def wait(self) -> Any:
        """Wait until the request is over, and return its result or raise its error."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        return self._result


def operand(tensor: Tensor) -> Operand:
    """Return a tensor's description for other ranks. Raises TypeError if it is not dense."""
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
