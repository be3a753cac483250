"""Optimizers of all kinds, on parts of models: one process's parameters, or a refusal."""

from __future__ import annotations

import importlib.util
from functools import cache, partial
from typing import Any

import pytest
from support.worlds import run_in_one_world

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
EXACT = 1e-9
REFUSED = (
    *("does not compute elementwise", "cannot be tried", "each rank steps some parameters, and"),
)
COUPLED = {"LBFGS", "LBFGS once", "LBFGS short", "LBFGS searching"}
COUPLED |= {"Polyak", "Sharpness", "Decayed", "Steady"}  # no way of sharing parameters out is right
ELEMENTWISE = {"AdamW", "Rprop", "Extragradient", "Slow"}


@cache
def results(way: str) -> dict[str, Any]:
    from support.strange_optimizers import KINDS, compared

    bodies = {kind: partial(compared, way, kind) for kind in KINDS}
    return run_in_one_world(2, bodies, 30.0)


@pytest.mark.parametrize("way", ["sharded", "spread", "cut"])
def test_optimizers_leave_one_processs_parameters_or_are_refused(way: str) -> None:
    wrong = {}
    for kind, (first, other) in results(way).items():
        is_right = isinstance(first, float) and max(first, other) < EXACT
        is_refused = first == other and any(text in str(first) for text in REFUSED)
        if kind == "Curved":  # torch itself refuses
            is_refused |= first == other and "RuntimeError" in str(first)
        if not (is_right or is_refused) or (is_refused and kind in ELEMENTWISE):
            wrong[kind] = first, other
        if is_right and kind in COUPLED:
            wrong[kind] = "it is not refused"
    assert not wrong
