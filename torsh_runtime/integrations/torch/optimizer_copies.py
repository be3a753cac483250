"""Copies optimizers for other parameters, and looks at the state that they keep of each."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

STEPS = "_torsh_steps"
"""The attribute of an optimizer that follows its steps."""


def copied_optimizer(optimizer: Any, stand_ins: dict[int, Any], rate: float) -> Any:
    """Return a copy of the optimizer for other parameters, without hooks, and with such state only
    as it has from the beginning."""
    copied = object.__new__(type(optimizer))
    memo: dict[int, Any] = dict(stand_ins)
    for each in (optimizer, *_within(optimizer)):  # which may have their state in common
        if id(each.state) not in memo:
            memo[id(each.state)] = _first_state(each.state, stand_ins)
    for name, value in vars(optimizer).items():
        if name == "state":
            copied.state = memo[id(value)]
        elif name.startswith("_optimizer_"):
            vars(copied)[name] = OrderedDict()
        elif name not in ("step", "zero_grad", "all_param_groups", STEPS):  # schedulers set some
            vars(copied)[name] = _copy_of(value, memo)
    for group in copied.param_groups:
        if isinstance(group.get("lr"), float | int):
            group["lr"] = max(group["lr"], rate)
        elif isinstance(group.get("lr"), torch.Tensor):
            group["lr"].clamp_(min=rate)
    return copied


def _within(optimizer: Any) -> list[torch.optim.Optimizer]:
    """Return the optimizers that a wrapper of optimizers has."""
    found = vars(optimizer).values()
    return [each for each in found if isinstance(each, torch.optim.Optimizer)]


def _copy_of(value: Any, memo: dict[int, Any]) -> Any:
    """Return a deep copy, or the value itself if it cannot be copied, as generators."""
    try:
        return copy.deepcopy(value, memo)
    except TypeError:
        return value


def _first_state(state: Mapping[Any, Any], stand_ins: dict[int, Any]) -> Any:
    """Return the state that stand-ins have where an optimizer has made some of parameters in the
    beginning; none if that cannot be told."""
    found: Any = defaultdict(dict)
    for key, kept in state.items():
        if not isinstance(key, torch.Tensor):
            found[key] = copy.deepcopy(kept)
            continue
        small = stand_ins.get(id(key))
        for name, value in kept.items() if small is not None else ():
            made = _first_value(value, key, small)
            if made is None:
                return defaultdict(dict)
            found[small][name] = made
    return found


def _first_value(value: Any, parameter: Any, small: Any) -> Any:
    """Return what stands for a value of a parameter's state; None if that cannot be told."""
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, bool | int | float | str) else None
    if value.numel() <= 1 < parameter.numel():
        return value.clone()
    if value.shape != parameter.shape:
        return None
    if torch.equal(value, parameter):
        return small.detach().clone()
    if value.numel() and bool((value == value.reshape(-1)[0]).all()):
        return torch.full_like(small, value.reshape(-1)[0].item(), dtype=value.dtype)
    return None


def is_by_element(kept: Any, size: int, depth: int = 3) -> bool:
    """Return whether an optimizer's state of a parameter of `size` elements has numbers, and
    tensors of so many elements. Where one of these has integers, other tensors are their scales."""
    if isinstance(kept, torch.Tensor):
        return kept.numel() in (0, 1, size)
    found = kept.values() if isinstance(kept, Mapping) else getattr(kept, "__dict__", {}).values()
    if isinstance(kept, list | tuple | deque):
        found = kept
    if any(_has_codes(each, size) for each in found):
        return True
    return all(depth and is_by_element(each, size, depth - 1) for each in found)


def _has_codes(value: Any, size: int) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not (value.is_floating_point() or value.dtype == torch.bool)
        and value.numel() == size > 1
    )


def step_without_hooks(optimizer: Any) -> Callable[..., Any]:
    """Return the optimizer's step() without what torch calls before and after it."""
    step = type(optimizer).step
    own = step.__wrapped__ if getattr(step, "hooked", False) else step
    return partial(own, optimizer)
