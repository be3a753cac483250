"""Makes futures that C++ treats like those of torch's own backends.

A torch.futures.Future made in Python holds any object. DDP's hooks in C++ (`BuiltinCommHookType`)
require one that torch knows to hold a list of tensors. Only TorchScript makes such futures.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import torch

Future = torch.futures.Future
_SCRIPT = """
def wait(over: Future[bool], tensors: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(over)
    return tensors

def after(over: Future[bool], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(wait, over, tensors)
"""


def completed(tensors: Sequence[torch.Tensor]) -> Future[Any]:
    """Return a completed future of the tensors."""
    if not tensors:  # TorchScript cannot determine the type of an empty list
        return _held([])
    return cast(Future[Any], torch._C.fork(lambda: list(tensors)))  # runs it at once


def after(over: Future[Any], tensors: Sequence[torch.Tensor]) -> Future[Any]:
    """Return a future of the tensors that completes, or fails, as `over` does.

    No thread waits for it.
    """
    if not tensors:
        return over.then(_nothing)
    return cast(Future[Any], _script().after(over, list(tensors)))


def _nothing(over: Future[Any]) -> list[torch.Tensor]:
    over.value()  # raises its error, if any
    return []


def _held(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@cache
def _script() -> Any:
    return torch.jit.CompilationUnit(_SCRIPT)
