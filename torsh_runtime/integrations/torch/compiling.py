"""What torch.compile must leave alone: it would look into a group for what it cannot trace."""

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
"""Whether graphs may have our operators; versions of torch without this run them between graphs."""
_LEFT_ALONE: dict[str, Any] = {
    "_torchdynamo_disable": True,
    "_torchdynamo_disable_msg": "collectives run as they are; what is around them is compiled",
}


def not_compiled(kind: Class) -> Class:
    """Have torch.compile run the class's methods, and what they call, as they are.

    What torch.compiler.disable does to functions, without loading torch's compiler, which takes
    about a second, for those who do not compile.
    """
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            leave_alone(method)
    return kind


def leave_alone(method: Function) -> Function:
    """The same for one function, which is returned."""
    vars(method).update(_LEFT_ALONE)  # where the compiler meets a call of it
    if hasattr(eval_frame, "set_code_exec_strategy"):  # where it is called past the compiler
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(method.__code__, strategy)
    return method


def is_traced() -> bool:
    """Whether torch.compile reads what runs here, to make a graph of it."""
    return _HAS_EFFECTS and torch.compiler.is_dynamo_compiling()


class Operators:
    """Operators of this library in graphs, as torch.ops.torsh has them for as long as this lives.

    They are called in graphs only: torch takes tens of microseconds for each.
    """

    def __init__(self) -> None:
        library: Any = Library
        self._library = library("torsh", "FRAGMENT")

    def composed(self, schema: str, function: Callable[..., Any]) -> None:
        """One that graphs have in the pieces which the function calls, gradients included."""
        self._library.define(schema)
        self._library.impl(_name(schema), function, "CompositeImplicitAutograd")

    def with_effect(
        self, schema: str, function: Callable[..., Any], fake: Callable[..., Any]
    ) -> None:
        """One without a gradient that compilers call as often as the program does, in its order.

        fake: the result's shape, dtype and strides, without its values.
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
