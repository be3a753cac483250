"""Reads torch's options of an operation, and their shorter spellings."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch._C import _distributed_c10d

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.integrations.torch.observing import as_operation, observed, show

c10d: Any = _distributed_c10d
_REDUCTIONS = tuple(ReduceOp)  # torch numbers them alike
_PREMUL_SUM = int(ReduceOp.PREMUL_SUM)
_UNSET = timedelta(0)
Method = TypeVar("Method", bound=Callable[..., Any])


def reduction(options: Any) -> Reduce:
    """Return the reduction of options.reduceOp.

    Raises ValueError for an unknown one, or for a factor that is not a single number.
    """
    operation = options.reduceOp
    number = hash(operation)  # the quickest way to its RedOpType
    if number < _PREMUL_SUM:
        return _REDUCTIONS[number]
    if number > _PREMUL_SUM:
        raise ValueError(f"{operation} is no reduction that the torsh backend knows")
    return PremulSum(float(operation.factor))


def _maybe_asynchronous(_: Any) -> bool:
    return True


# Older versions of torch do not pass this to the backend, and wait for the Work themselves.
_told = hasattr(c10d.AllreduceOptions(), "asyncOp")
asynchronous = operator.attrgetter("asyncOp") if _told else _maybe_asynchronous
"""Tells whether the caller continues before the operation is complete."""


def seconds(options: Any, default: float) -> float:
    """Return options.timeout in seconds; the default if it is unset, which torch writes as
    negative.
    """
    timeout: timedelta = options.timeout
    return default if timeout < _UNSET else timeout.total_seconds()


def spellings(
    options: Any, *fields: str, tensors: int = 1, wrapped: bool = True
) -> Callable[[Method], Method]:
    """Let a method `(self, *tensor arguments, options)` be called in all ways that torch allows.

    distributed_c10d and C++ pass options, in the last place; others leave them out, or pass
    `fields` of them instead, by position or by name. Then a bare tensor may replace a list of one
    (`wrapped`).
    """

    def decorate(method: Method) -> Method:
        def spelt_out(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
            if len(given) > tensors and isinstance(given[tensors], options):
                return given
            arguments = given[:tensors]
            if wrapped and any(isinstance(argument, torch.Tensor) for argument in arguments):
                arguments = tuple([argument] for argument in arguments)
            return (*arguments, _options(options, fields, given[tensors:], named))

        @functools.wraps(method)
        def call(self: Any, *given: Any, **named: Any) -> Any:
            arguments = spelt_out(given, named)
            try:
                if not observed():
                    return method(self, *arguments)
                with show(self, method.__name__, given, named):
                    return method(self, *arguments)
            except TypeError as refusal:
                return _by_subclasses(self, method.__name__, arguments, refusal)

        return cast(Method, as_operation(call))

    return decorate


def _by_subclasses(group: Any, operation: str, given: Sequence[Any], refusal: TypeError) -> Any:
    from torsh_runtime.integrations.torch.subclasses import carry_out

    return carry_out(group, operation, given, refusal)


def _options(kind: Any, fields: Sequence[str], given: Sequence[Any], named: dict[str, Any]) -> Any:
    """Return options of that kind, made from the arguments that were passed instead."""
    if named.get("opts") is not None:
        return named["opts"]
    values = dict(zip(fields, given, strict=False)) | named
    if len(given) > len(fields) or not values.keys() <= {*fields, "opts"}:
        raise TypeError(f"after the tensors, this operation takes {', '.join(fields)} or opts")
    made = kind()
    for name, value in values.items():
        if value is not None:
            setattr(made, _FIELDS[name], value)
    return made


_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
