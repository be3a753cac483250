"""Data parallelism does not wait for the device of its tensors once per tensor."""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from itertools import product
from typing import Any

import pytest
from support.forked import Raised
from support.fresh import call_in_new_interpreter

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
NORMS = (1.0, 2.0, 3.0, math.inf)
KINDS = {
    ("float32",): 1e-6,
    ("float64",): 1e-6,
    ("bfloat16",): 0.02,
    ("float16", "float32", "complex64"): 1e-3,
}
"""Relative differences that clipped gradients of these dtypes may have."""

LAYERS = [
    ("float32", "float32"),
    ("float64", "float64"),
    ("bfloat16", "float32"),
    ("float16", "float16"),
    ("float64", "float32"),
]
"""The dtypes of batches and of the layers that normalise them."""


@cache
def in_world() -> dict[Any, list[Any]]:
    """What each rank's part returned, by the function and its arguments. torch counts devices when
    a process first computes gradients, so this one must not have."""
    from support import far_training

    cases: list[tuple[Any, ...]] = [("clips", kind, order) for kind in KINDS for order in NORMS]
    cases += [("torchs_clip", *kind, order) for kind in KINDS if len(kind) == 1 for order in NORMS]
    cases += [("scales", kind, last) for kind in KINDS for last in (2.0, math.inf)]
    cases += [("normalises", *each) for each in product(LAYERS, (0.1, None), (4, 1, 0))]
    cases += [("sends",), ("shares_steps",), ("torchs_clip_of_few",), ("plain_snapshot",)]
    cases += [("snapshots", can_lock) for can_lock in (True, False)]
    return call_in_new_interpreter(far_training.all_results, cases)


def ranks_of(*case: Any) -> list[Any]:
    results = in_world()[case]
    for result in results:
        assert not isinstance(result, Raised), result.error.args[0]
    return results


@pytest.mark.parametrize("order", NORMS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_clipping_on_a_mesh_waits_once(kind: tuple[str, ...], order: float) -> None:
    results = ranks_of("clips", kind, order)
    assert len({norm for norm, _, _ in results}) == 1
    for norm, clipped, waits in results:
        assert norm == pytest.approx(1.0, rel=1e-6)
        assert clipped == pytest.approx(1.0, rel=KINDS[kind])
        assert waits == 1


@pytest.mark.parametrize("order", NORMS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if len(kind) == 1], ids=str)
def test_torchs_clipping_of_parts_does_not_wait(kind: tuple[str, ...], order: float) -> None:
    for norm, clipped, waits in ranks_of("torchs_clip", *kind, order):
        assert norm == pytest.approx(1.0, rel=1e-6 if kind != ("bfloat16",) else 0.01)
        assert clipped == pytest.approx(1.0, rel=KINDS[kind])
        assert waits == 0


def test_torchs_clipping_of_parts_exchanges_on_the_device_of_parts() -> None:
    for found in ranks_of("torchs_clip_of_few"):
        assert found == pytest.approx((5.0, 2.0, 1))  # of 4 times 2 and 9 times 1; then of part


@pytest.mark.parametrize(("last", "scale"), [(2.0, 8.0), (math.inf, 4.0)])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_dividing_by_the_scale_waits_once(kind: tuple[str, ...], last: float, scale: float) -> None:
    for is_same, found, waits in ranks_of("scales", kind, last):
        assert is_same
        assert found == scale
        assert waits == 1


@pytest.mark.parametrize("rows", [4, 1, 0])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("dtypes", LAYERS, ids="-".join)
def test_normalising_waits_once_per_layer(
    dtypes: tuple[str, str], momentum: float | None, rows: int
) -> None:
    for waits in ranks_of("normalises", dtypes, momentum, rows):
        assert waits == [0, 0, 1, 1]


def test_buffers_are_broadcast_together_by_dtype() -> None:
    for is_right, counted in ranks_of("sends"):
        assert is_right
        assert counted == {"waits": 0, "broadcasts": 3}  # floats, integers, and the large one


def test_owners_send_their_parameters_in_one_broadcast_each() -> None:
    for is_right, counted in ranks_of("shares_steps"):
        assert is_right
        assert counted == {"waits": 0, "broadcasts": 2}


@pytest.mark.parametrize("can_lock", [True, False])
def test_a_checkpoint_waits_once_for_all_that_the_device_has_to_do(can_lock: bool) -> None:
    for found in ranks_of("snapshots", can_lock):
        assert found == {
            "step 1": True,
            "step 2": True,
            "waits": [(0, 1), (0, 1)],
            "locked": [int(can_lock)] * 2,
            "left": 0,
        }


def test_a_checkpoint_takes_tensors_of_devices_without_cuda() -> None:
    assert ranks_of("plain_snapshot") == [True, True]
