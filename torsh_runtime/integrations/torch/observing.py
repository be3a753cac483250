"""Shows collectives to torch's profiler and to dispatch modes, such as CommDebugMode."""

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
    """Return whether a profiler or a dispatch mode observes operations of this thread."""
    return bool(_profiling() or _modes())


def show(group: Any, operation: str, given: Any, named: Any) -> AbstractContextManager[object]:
    """Show observers torch's own operator with these arguments, as with other backends.

    The code in the returned context is the profile's event "torsh:<operation>". The operator is
    called on a group that does not communicate; it may write into the outputs.
    """
    operator = getattr(shadow(group.rank(), group.size()), operation)
    with suppress(RuntimeError), torch.no_grad():  # operators that it lacks are not shown
        try:
            operator(*given, **named)
        except RuntimeError:  # it does not write into its input
            operator(*tree_map_only(torch.Tensor, torch.empty_like, given), **named)
    return torch.autograd.profiler.record_function(f"torsh:{operation}")


def shown(method: Method) -> Method:
    """Show calls of a group's method to observers."""

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        if not observed():
            return method(self, *given, **named)
        with show(self, method.__name__, given, named):
            return method(self, *given, **named)

    return cast(Method, as_operation(call))


def as_operation(method: Method) -> Method:
    """Mark the method as an operation, which stand-ins for a group may pass to another one."""
    vars(method)["is_operation"] = True
    return method


@cache
def shadow(rank: int, ranks: int) -> Any:
    """Return a group of `ranks` ranks whose operations do nothing."""
    group = c10d.ProcessGroup(rank, ranks)
    kind = c10d.ProcessGroup.BackendType.CUSTOM
    group._set_default_backend(kind)
    group._register_backend(_CPU, kind, c10d.FakeProcessGroup._create_internal(rank, ranks))
    return group
