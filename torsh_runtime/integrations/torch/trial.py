"""Finds out whether an optimizer computes elementwise.

Copies of it step on small parameters, both cut and whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from torsh_runtime.framework.parts import Marks, Part
from torsh_runtime.integrations.torch.optimizer_copies import (
    copied_optimizer,
    is_by_element,
    step_without_hooks,
)
from torsh_runtime.layout import even_cuts

_SIZES, _LARGEST = (5, 4), (131, 129)
"""Sizes of the first dimensions, except a cut one; further dimensions have the last size. The
second are those of the largest matrices that are tried."""
_GROWTHS = ((1.0, 1.0, 1.0), (1.0, 9.0, -4.0, -9.0, -20.0), (1.0,) * 30)
"""Factors of the gradients in each step. The second set is for optimizers that limit large
changes, or estimate a rate while norms grow, the third for those that do so in many steps."""
_STEEP = 100.0
"""Factor of the curvature in one more set, which limits rates that are estimated from it."""
_UPRIGHT = (0, 1)
"""Numbers of rows that are left as they are where gradients are orthogonal to the values in each
row, as those of weights before normalisation: some optimizers project them."""
_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Largest tolerated difference, relative to the largest change."""
_RANKS = 2
"""Parts that a small parameter is cut into, along each dimension in which its likes are cut."""
_IN_COMMON = (
    "it changes a parameter by other parameters' gradients as well, as one that clips by a common "
    "norm or estimates a common learning rate does"
)
_SKIP = "its step() has to skip parameters whose .grad is None, as torch's optimizers do"
_DERIVES = "grad_fn"
"""The word of errors that torch and optimizers raise if gradients have no graph."""
_RATE, _WHOLE_RATE = 1e-2, 1.0
"""The least learning rate, as a warm-up begins with 0, and that of optimizers that estimate it."""


class Stepped(NamedTuple):
    """Holds the result of a trial."""

    is_elementwise: bool
    reason: str = ""
    is_certain: bool = True
    """False if the optimizer has changed nothing, or could not be tried for the reason given.
    is_elementwise is true then."""


def trial(optimizer: Any, marked: Mapping[int, Marks], has_closure: bool) -> Stepped:
    """Step copies of an optimizer on whole parameters, and on this rank's parts of them.

    The optimizer itself, its parameters and torch's random numbers are not changed.

    marked: marks of the cut parameters, by id(). has_closure: whether step() is given a closure.
    """
    return _in_all(_tried, optimizer, marked, has_closure)


def trial_of_each(optimizer: Any, marked: Mapping[int, Marks], has_closure: bool) -> Stepped:
    """Make a trial, and find out as well whether copies change a parameter as they would if other
    parameters had no gradients. Else a rank that owns only some of them could not step these.

    marked: marks of the parameters that are cut, even if ranks own what they can own as a whole.
    """
    if any(marks.parts for marks in marked.values()):
        found = _in_all(_tried, optimizer, marked, has_closure)
        if not (found.is_elementwise and found.is_certain):
            return found
    return _in_all(_tried_in_turn, optimizer, marked, has_closure)


def _in_all(
    attempt: _Attempt,
    optimizer: Any,
    marked: Mapping[int, Marks],
    has_closure: bool,
) -> Stepped:
    """Make an attempt with each kind of gradients, until one is not elementwise."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    devices = {each.device for each in parameters if each.device.type == "cuda"}
    short, long = _GROWTHS[0], _GROWTHS[-1]
    kinds: list[tuple[tuple[float, ...], float, float, int | None, bool]]
    kinds = [(each, 1.0, rate, None, False) for rate in (_RATE, _WHOLE_RATE) for each in _GROWTHS]
    kinds += [(long, _STEEP, _RATE, None, False), (long, 1.0, _WHOLE_RATE, None, True)]
    kinds += [(short, 1.0, _RATE, left, False) for left in _UPRIGHT]
    is_certain, reason = False, ""
    with torch.random.fork_rng(devices=devices):
        for kind in kinds:
            steps = _Steps(optimizer, parameters, has_closure, *kind)
            found = attempt(steps, marked)
            if not found.is_elementwise:
                return found
            is_certain |= found.is_certain
            reason = reason or found.reason
    return Stepped(True, "" if is_certain else reason, is_certain)


class _Steps(NamedTuple):
    """Describes the steps of copies of an optimizer."""

    optimizer: Any
    parameters: list[Any]
    has_closure: bool
    growth: tuple[float, ...]
    steepness: float
    rate: float
    left: int | None
    """Number of rows in which gradients are not orthogonal to values; None: all."""
    alternates: bool
    """Tells that gradients of every second parameter change their sign in each step, for optimizers
    that estimate a rate from how steady signs are."""
    dtype: Any = torch.float64


def _tried(steps: _Steps, marked: Mapping[int, Marks]) -> Stepped:
    wholes = _smalls(steps, marked)
    try:
        whole, state = _changes_and_state(steps, wholes, False, 0)
        again = _changes(steps, wholes, False, 1)
    except Exception as error:  # a program's own optimizer may raise anything
        return _without_result(_tried, steps, marked, error)
    for small, kept in zip(wholes, state, strict=True):
        if small.is_cut and not is_by_element(kept, small.values.numel()):
            return Stepped(False, "it has state of a parameter that is not by element")
    if not all(map(torch.equal, whole, again)):  # it draws random numbers
        others = _changes(steps, [each.with_others() for each in wholes], False, 0)
        one, other = (
            [s.cut(v) for s, v in zip(wholes, each, strict=True)] for each in (whole, others)
        )
        return _compared(one, other, steps.dtype)
    try:
        parts = _changes(steps, wholes, True, 0)
    except Exception as error:
        return Stepped(False, f"on a part it raises {_named(error)}")
    expected = [each.cut(value) for each, value in zip(wholes, whole, strict=True)]
    return _compared(expected, parts, steps.dtype)


def _tried_in_turn(steps: _Steps, marked: Mapping[int, Marks]) -> Stepped:
    """Compare steps with all gradients with steps that have those of every second parameter."""
    wholes = _smalls(steps, marked)
    try:
        together = _changes(steps, wholes, False, 0)
    except Exception as error:
        return _without_result(_tried_in_turn, steps, marked, error)
    for start in (0, 1) if len(wholes) > 1 else ():
        chosen = range(start, len(wholes), 2)
        try:
            alone = _changes(steps, wholes, False, 0, chosen)
        except Exception as error:
            return Stepped(False, f"without some gradients it raises {_named(error)}; {_SKIP}")
        one, other = ([found[each] for each in chosen] for found in (together, alone))
        found = _compared(one, other, steps.dtype)
        if not found.is_elementwise:
            return Stepped(False, _IN_COMMON)
    return Stepped(True)


def _without_result(
    attempt: _Attempt, steps: _Steps, marked: Mapping[int, Marks], error: Exception
) -> Stepped:
    """Make the attempt again in float32, or tell what its error means."""
    if steps.dtype is torch.float64:  # the optimizer may keep state in float32
        return attempt(steps._replace(dtype=torch.float32), marked)
    if _DERIVES in str(error):
        return Stepped(False, "it computes derivatives of gradients")
    return Stepped(True, f"on small parameters it raises {_named(error)}", False)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _smalls(steps: _Steps, marked: Mapping[int, Marks]) -> list[_Small]:
    generator = torch.Generator().manual_seed(0)
    large = _large(steps.optimizer, marked)
    return [
        _Small(each, marked.get(id(each)), large.get(id(each), _SIZES), generator, steps)
        for each in steps.parameters
    ]


def _large(optimizer: Any, marked: Mapping[int, Marks]) -> dict[int, tuple[int, ...]]:
    """Return the sizes of one cut matrix of each parameter group, by its id(): those that it has,
    up to a limit. Optimizers may treat matrices of some sizes differently."""
    found = {}
    for group in optimizer.param_groups:
        matrices = [each for each in group["params"] if _is_matrix(each, marked)]
        if matrices:
            chosen = max(matrices, key=lambda each: (min(each.shape), each.numel()))
            sizes = zip(chosen.shape, _SIZES, _LARGEST, strict=True)
            found[id(chosen)] = tuple(min(max(own, few), many) for own, few, many in sizes)
    return found


def _is_matrix(parameter: Any, marked: Mapping[int, Marks]) -> bool:
    marks = marked.get(id(parameter))
    return marks is not None and marks.ndim == 2


def _compared(expected: list[Any], found: list[Any], dtype: Any) -> Stepped:
    """Compare changes. Where nothing has changed, that says nothing."""
    is_certain = any(bool(each.any()) for each in expected)
    for one, other in zip(expected, found, strict=True):
        largest = float(one.abs().max()) if one.numel() else 0.0
        differing = float((one - other.reshape(one.shape)).abs().max()) if one.numel() else 0.0
        if differing > _ROUNDING[dtype] * max(
            largest, float(other.abs().max()) if one.numel() else 0.0
        ):
            share = differing / max(largest, 1e-30)
            return Stepped(False, f"it changes a part otherwise than a whole, by {share:.2g} of it")
    return Stepped(True, is_certain=is_certain)


_Attempt = Callable[[_Steps, Mapping[int, Marks]], Stepped]


class _Small:
    """Replaces a parameter by small values, and gradients that depend on them elementwise."""

    def __init__(
        self,
        parameter: Any,
        marks: Marks | None,
        sizes: tuple[int, ...],
        generator: torch.Generator,
        steps: _Steps,
    ) -> None:
        self._parts = [] if marks is None else marks.parts
        ndim = parameter.dim() if marks is None else marks.ndim
        shape = [sizes[min(dim, len(sizes) - 1)] for dim in range(ndim)]
        for part in self._parts:
            if shape:
                shape[part.dim] *= _RANKS + 1
        draw = partial(torch.randn, generator=generator, dtype=steps.dtype, device="cpu")
        self.values = draw(shape).to(parameter.device)
        self.slopes = draw(shape).to(parameter.device)
        self.curves = draw(shape).sigmoid().to(parameter.device) * steps.steepness
        if steps.left is None:
            self.slopes += self.values
        elif ndim > 1:
            _turn(self.slopes, self.values, steps.left)

    @property
    def is_cut(self) -> bool:
        """Return whether this rank has a part of it."""
        return bool(self._parts)

    def parts_of(self, is_cut: bool) -> tuple[Any, Any, Any]:
        """Return values, slopes and curvatures, whole or this rank's part of each."""
        found = self.values, self.slopes, self.curves
        return tuple(map(self.cut, found)) if is_cut else found

    def with_others(self) -> _Small:
        """Return a copy that is equal in this rank's part, and differs in the other ranks'."""
        found = copy.copy(self)
        found.values, found.slopes = self.values * 2 + 1, self.slopes * 3 - 1
        for own, others in ((self.values, found.values), (self.slopes, found.slopes)):
            self.cut(others).copy_(self.cut(own))
        return found

    def cut(self, whole: Any) -> Any:
        """Return this rank's part."""
        for part in self._parts:
            whole = _cut(whole, part)
        return whole


def _turn(slopes: Any, values: Any, left: int) -> None:
    """Make slopes orthogonal to the values in all rows but the last `left`."""
    own, other = slopes.flatten(1), values.flatten(1)
    rows = slice(0, len(own) - left)
    share = (own * other).sum(1, keepdim=True) / other.square().sum(1, keepdim=True)
    own[rows] -= (share * other)[rows]


def _cut(whole: Any, part: Part) -> Any:
    rank, ranks = part.group.rank % _RANKS, _RANKS
    if not whole.dim():
        whole = whole.reshape(1)
    start, end = even_cuts(whole.shape[part.dim], ranks)[rank : rank + 2]
    return whole.narrow(part.dim, start, end - start)


def _changes(
    steps: _Steps,
    smalls: list[_Small],
    is_cut: bool,
    seed: int,
    chosen: Sequence[int] | None = None,
) -> list[Any]:
    """Return by how much a few steps of a copy change the small parameters.

    chosen: numbers of those that have gradients; None: all.
    """
    return _changes_and_state(steps, smalls, is_cut, seed, chosen)[0]


def _changes_and_state(
    steps: _Steps,
    smalls: list[_Small],
    is_cut: bool,
    seed: int,
    chosen: Sequence[int] | None = None,
) -> tuple[list[Any], list[Any]]:
    """Return the changes, and the copy's state of each parameter."""
    torch.manual_seed(seed)
    parts = [each.parts_of(is_cut) for each in smalls]
    own = [torch.nn.Parameter(values.clone()) for values, _, _ in parts]
    stand_ins = {id(each): small for each, small in zip(steps.parameters, own, strict=True)}
    copied = copied_optimizer(steps.optimizer, stand_ins, steps.rate)
    step = step_without_hooks(copied)
    for number, growth in enumerate(steps.growth):
        other = -growth if steps.alternates and number % 2 else growth
        closure = partial(_gradients, own, parts, (growth, other), chosen)
        closure()
        step(*(closure,) * steps.has_closure)
    changes = [each.detach() - first for each, (first, _, _) in zip(own, parts, strict=True)]
    if chosen is not None:  # modes that exchange values need state of all parameters, maybe
        for mode in ("eval", "train"):
            getattr(copied, mode, bool)()
    return changes, [copied.state.get(each, {}) for each in own]


@torch.no_grad()
def _gradients(
    parameters: list[Any],
    parts: list[tuple[Any, Any, Any]],
    growths: tuple[float, float],
    chosen: Sequence[int] | None,
) -> Any:
    """Set the parameters' gradients, and return their loss, which is a sum over the elements."""
    loss = torch.tensor(1.0, dtype=parameters[0].dtype)
    for number, (each, (first, slope, curve)) in enumerate(zip(parameters, parts, strict=True)):
        if chosen is None or number in chosen:
            growth = growths[number % 2]
            change = each - first
            each.grad = slope * growth + curve * change
            loss += (change * (slope * growth + curve * change / 2)).sum().cpu()
    return loss
