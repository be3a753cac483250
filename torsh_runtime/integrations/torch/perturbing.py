"""Looks at optimizers that move parameters in first_step(), before a second backward pass.

Classes for sharpness-aware minimization have it. They move parameters by the norm of all gradients,
and call another optimizer's step() later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

_NAME, _IS_WATCHED = "first_step", "_torsh_is_watched"


def watch_first_steps(before: Callable[[Any], None]) -> None:
    """Call before(optimizer) whenever first_step() of an optimizer is called from now on."""
    kind: Any = torch.optim.Optimizer
    own = kind.add_param_group

    @functools.wraps(own)
    def add_param_group(optimizer: Any, group: dict[str, Any]) -> None:
        own(optimizer, group)
        _watch(type(optimizer), before)

    kind.add_param_group = add_param_group  # which each optimizer calls when it is made
    for each in _all_below(kind):
        _watch(each, before)


def _all_below(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield each
        yield from _all_below(each)


def _watch(kind: type, before: Callable[[Any], None]) -> None:
    for each in kind.__mro__:
        own = vars(each).get(_NAME)
        if callable(own) and not hasattr(own, _IS_WATCHED):
            setattr(each, _NAME, _with(own, before))


def _with(own: Callable[..., Any], before: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(own)
    def first_step(optimizer: Any, *given: Any, **named: Any) -> Any:
        before(optimizer)
        return own(optimizer, *given, **named)

    setattr(first_step, _IS_WATCHED, True)
    return first_step
