"""What torch.compile must leave alone: it would look into a group for what it cannot trace."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
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
