"""What a rank called of which only is known how many bytes it had room for."""

from __future__ import annotations

import pytest

from torshrun.failure.sizes import OTHER, what_it_called

SMALL, LARGE = "all_gather(float32[1000])", "all_gather(float64[10, 100])"


@pytest.mark.parametrize(
    ("came", "room", "calls", "expected"),
    [
        (4000, 2000, {1: SMALL, 2: LARGE}, SMALL),  # Gloo's pieces of halves
        (2668, 668, {0: "all_reduce(float32[4000], SUM)"}, OTHER),
        (2668, 668, {0: "f(float32[4000])", 2: "f(float32[4000])"}, OTHER),
        (2668, 668, {0: "f(float32[4000])", 2: "f(float32[1000])"}, "f(float32[1000])"),
        (504, 500, {0: "f(float32[1001])", 1: "f(float32[1000])"}, "f(float32[1000])"),
        (504, 500, {0: "f(float32[1000])", 1: "f(float32[1001])"}, "f(float32[1000])"),
        (504, 500, {0: "f(float32[1000])", 1: "f(float32[999])"}, "f(float32[999])"),
        (504, 500, {0: "f(float32[1000])", 1: "f(float32[10])"}, OTHER),
        (0, 0, {1: SMALL}, ""),
        (8, 4, {1: "barrier()", 2: SMALL}, ""),
        (8, 4, {1: "all_gather(float32[0])"}, ""),
        (8, 4, {1: "all_gather(float32[1 2])"}, ""),  # as a worker's file may have it
    ],
)
def test_by_the_ratio_of_bytes(came: int, room: int, calls: dict[int, str], expected: str) -> None:
    assert what_it_called(came, room, calls) == expected
