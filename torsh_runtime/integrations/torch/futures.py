"""Futures that are for C++ what those of torch's own backends are.

A torch.futures.Future made in Python holds any object. DDP's hooks in C++ (`BuiltinCommHookType`)
want one of which torch knows that it holds a list of tensors; only TorchScript makes such.
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
    """A future of the tensors, complete from the start."""
    if not tensors:  # of what kind an empty list is, TorchScript cannot tell
        return _held([])
    return cast(Future[Any], torch._C.fork(lambda: list(tensors)))  # calls it at once


def after(over: Future[Any], tensors: Sequence[torch.Tensor]) -> Future[Any]:
    """A future of the tensors once `over` is complete; it fails as that does. No thread waits."""
    if not tensors:
        return over.then(_nothing)
    return cast(Future[Any], _script().after(over, list(tensors)))


def _nothing(over: Future[Any]) -> list[torch.Tensor]:
    over.value()  # raises what it failed with
    return []


def _held(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


@cache
def _script() -> Any:
    return torch.jit.CompilationUnit(_SCRIPT)
