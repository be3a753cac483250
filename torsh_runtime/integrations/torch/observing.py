"""Collectives shown to torch's profiler and to dispatch modes, such as CommDebugMode."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import cache, wraps
from typing import Any, TypeVar, cast

import torch
from torch._C import _distributed_c10d
from torch.utils._pytree import tree_map_only

c10d: Any = _distributed_c10d
Method = TypeVar("Method", bound=Callable[..., Any])
_CPU = torch.device("cpu")
_profiling = torch._C._autograd._profiler_enabled
_modes = torch._C._len_torch_dispatch_stack


def observed() -> bool:
    """Whether anybody on this thread wants to know of operations."""
    return bool(_profiling() or _modes())


def show(group: Any, operation: str, given: Any, named: Any) -> AbstractContextManager[object]:
    """Let them see torch's own operator with these arguments, as they would on other backends; what
    is done within the block is an event "torsh:<operation>" of the profile.

    The operator is called on a group that communicates nothing; it may write into the outputs.
    """
    operator = getattr(shadow(group.rank(), group.size()), operation)
    with suppress(RuntimeError), torch.no_grad():  # what it does not know, nobody is shown
        try:
            operator(*given, **named)
        except RuntimeError:  # it does not write where its input is
            operator(*tree_map_only(torch.Tensor, torch.empty_like, given), **named)
    return torch.autograd.profiler.record_function(f"torsh:{operation}")


def shown(method: Method) -> Method:
    """Let the method of a group be seen by whoever observes."""

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if not observed():
            return method(self, *given, **named)
        with show(self, method.__name__, given, named):
            return method(self, *given, **named)

    return cast(Method, as_operation(call))


def as_operation(method: Method) -> Method:
    """Mark the method as an operation, which stands-in for a group may give to another one."""
    vars(method)["is_operation"] = True
    return method


@cache
def shadow(rank: int, ranks: int) -> Any:
    """A group of so many ranks whose operations do nothing."""
    group = c10d.ProcessGroup(rank, ranks)
    kind = c10d.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(kind)
    group._register_backend(_CPU, kind, c10d.FakeProcessGroup._create_internal(rank, ranks))
    return group
