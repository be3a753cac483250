"""Keeps torch.compile out of groups, whose code it cannot trace, and defines graph operators."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch.library import Library

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
_HAS_EFFECTS = hasattr(Library, "_register_effectful_op")
"""True if graphs may contain torsh's operators. Older torch runs them between graphs."""
_LEFT_ALONE: dict[str, Any] = {
    "_torchdynamo_disable": True,
    "_torchdynamo_disable_msg": "collectives run as they are; what is around them is compiled",
}


def not_compiled(kind: Class) -> Class:
    """Have torch.compile run the class's methods, and the functions they call, uncompiled.

    This does what torch.compiler.disable does to functions, but does not load torch's compiler,
    which takes about a second, for programs that do not compile.
    """
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            leave_alone(method)
    return kind


def leave_alone(method: Function) -> Function:
    """Have torch.compile run this function uncompiled, and return it."""
    vars(method).update(_LEFT_ALONE)  # for calls that the compiler traces
    if hasattr(eval_frame, "set_code_exec_strategy"):  # for calls outside of traced code
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(method.__code__, strategy)
    return method


def is_traced() -> bool:
    """Return whether torch.compile is tracing the current code into a graph."""
    return _HAS_EFFECTS and torch.compiler.is_dynamo_compiling()


class Operators:
    """Defines operators for graphs in torch.ops.torsh, for as long as this object lives.

    They are called in graphs only, as torch takes tens of microseconds for each call.
    """

    def __init__(self) -> None:
        library: Any = Library
        self._library = library("torsh", "FRAGMENT")

    def composed(self, schema: str, function: Callable[..., Any]) -> None:
        """Define an operator that graphs decompose into the calls of `function`, gradients
        included.
        """
        self._library.define(schema)
        self._library.impl(_name(schema), function, "CompositeImplicitAutograd")

    def with_effect(
        self, schema: str, function: Callable[..., Any], fake: Callable[..., Any]
    ) -> None:
        """Define an operator without a gradient that compilers call as often and in the same order.

        fake: returns the result's shape, dtype and strides, without its values.
        """
        if not _HAS_EFFECTS:
            return
        from torch._library.effects import EffectType

        name = _name(schema)
        self._library.define(schema)
        self._library.impl(name, function, "CompositeExplicitAutograd")
        self._library._register_fake(name, fake)
        self._library._register_effectful_op(f"torsh::{name}", EffectType.ORDERED)


def _name(schema: str) -> str:
    return schema.partition("(")[0]
