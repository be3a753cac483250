"""Where parts lie, and what differences look like."""

from __future__ import annotations

import numpy as np
import pytest

from torsh_runtime import nn
from torsh_runtime.layout import Shard, TensorLayout
from torsh_runtime.parallel.verification.difference import (
    Difference,
    Held,
    Pair,
    Verification,
    tolerance_of,
    why,
)
from torsh_runtime.parallel.verification.placing import DataCut, Part, places
from torsh_runtime.parallel.verification.verifying import dealt

PART = np.array([1.0, -2.0, 3.0])
ALONG = {"dp": [0, 2], "tp": [0, 1]}


def no_cuts(_: int, size: int) -> list[DataCut]:
    return [DataCut(((0, size),), ())]


def rows_and_tokens(dim: int, size: int) -> list[DataCut]:
    """The second half of 4 rows, and the first and last of 4 chunks of 8 tokens."""
    cuts = {(0, 4): DataCut(((2, 4),), ("dp",)), (1, 8): DataCut(((0, 2), (6, 8)), ("cp",))}
    return [*filter(None, [cuts.get((dim, size))]), *no_cuts(dim, size)]


def test_microbatches_of_all_ranks_have_the_rows_of_each() -> None:
    assert [each.tolist() for each in dealt(10, 2, 3)] == [[0, 1, 5, 6], [2, 3, 7, 8], [4, 9]]


def test_equal_shapes_are_the_whole() -> None:
    along = {"tp": [(4, 6), (4, 6)]}
    assert places((4, 6), (4, 6), along, {"tp": 1}, no_cuts, None) == [
        Part((((0, 4),), ((0, 6),)), frozenset())
    ]


def test_uneven_sizes_lie_one_behind_the_other() -> None:
    along = {"tp": [(4, 1), (4, 3), (4, 2)]}
    (found,) = places((4, 6), (4, 2), along, {"tp": 2}, no_cuts, None)
    assert found == Part((((0, 4),), ((4, 6),)), frozenset())


def test_rows_are_those_of_the_data_first() -> None:
    along = {"tp": [(2, 6), (2, 6)]}
    first, second = places((4, 6), (2, 6), along, {"tp": 0}, rows_and_tokens, None)
    assert first == Part((((2, 4),), ((0, 6),)), frozenset(["dp"]))
    assert second == Part((((0, 2),), ((0, 6),)), frozenset())


def test_an_axis_of_the_model_cuts_what_the_data_leaves() -> None:
    along = {"tp": [(2, 3), (2, 1)]}
    found, _ = places((4, 8), (2, 1), along, {"tp": 1}, rows_and_tokens, None)
    assert found == Part((((2, 4),), ((7, 8),)), frozenset(["dp", "cp"]))
    found, _ = places((4, 8), (2, 3), along, {"tp": 0}, rows_and_tokens, None)
    assert found.spans[1] == ((0, 2), (6, 7))


def test_features_lie_as_the_weight_says() -> None:
    layout = TensorLayout((6, 5), (("tp", 2, Shard(0, sections=(4, 2))),))
    along = {"tp": [(2, 3), (2, 3)]}
    (found,) = places((2, 6), (2, 3), along, {"tp": 1}, no_cuts, ("tp", layout))
    assert found.spans == (((0, 2),), ((2, 4), (5, 6)))


@pytest.mark.parametrize("own", [(4, 5), (4, 6, 1), ()])
def test_what_is_no_part_lies_nowhere(own: tuple[int, ...]) -> None:
    assert places((4, 6), own, {"tp": [own, own]}, {"tp": 0}, no_cuts, None) == []


@pytest.mark.parametrize(
    ("owns", "expected"),
    [
        ((PART * 0.25, PART * 0.75, PART, PART), "a part of a sum along tp"),
        ((PART * 0.5, PART * 1.5, PART, PART), "each rank along tp has its own"),
        ((PART * 2, PART * 2, PART * 2, PART * 2), "added up once too often along dp or tp"),
        ((PART / 2, PART / 2, PART / 2, PART / 2), "it is 1/2 of that: averaged"),
        ((PART + 1, PART, PART + 1, PART), "ranks along tp differ"),
        ((PART * 0, PART * 0, PART * 0, PART * 0), "nothing but zeros"),
        ((PART * 3, PART * 3, PART * 3, PART * 3), "it is 3 times that"),
        ((PART * np.nan, PART, PART, PART), "no number"),
    ],
)
def test_what_a_difference_looks_like(owns: tuple[np.ndarray, ...], expected: str) -> None:
    held = {rank: Held(own, PART) for rank, own in enumerate(owns)}
    assert expected in why(0, held, ALONG, 1e-9)


def test_another_ranks_part_is_known() -> None:
    parts = (PART, PART[::-1], PART, PART[::-1])
    held = {rank: Held(parts[1 - rank % 2], part) for rank, part in enumerate(parts)}
    assert why(0, held, ALONG, 1e-9) == "it is what the rank with tp 1 has to have"


def test_what_looks_like_nothing_known_is_not_explained() -> None:
    held = {rank: Held(PART + np.array([0.0, 5.0, 1.0]), PART) for rank in range(4)}
    assert why(0, held, ALONG, 1e-9) == ""


def test_no_number_equals_itself_and_shapes_count() -> None:
    def pair(own: object, part: object) -> Pair:
        return Pair(
            order=(0, 0), kind="norm", name="", own=own, part=part, whole_shape=(3,), scale=1.0
        )

    assert not pair(PART * np.nan, PART * np.nan).differs(1e-9)
    assert pair(PART * np.nan, PART).differs(1e-9)
    assert pair(None, PART).text == "is missing"
    assert pair(PART[:2], None).text == "has shape (2,), which is no part of (3,)"


def test_in_words() -> None:
    one = Difference(kind="gradient", name="head.weight", rank=3, coordinate="tp 1", text="is 1")
    assert str(Verification(compared=9)) == "9 values are those of one process"
    found = Verification(compared=9, differences=(one, one))
    assert not found
    assert found.first is one
    told = "first, the gradient of 'head.weight' on rank 3 (tp 1) is 1; 1 more differ after it"
    assert str(found) == told


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 10), ("bfloat16", 7), ("float64", 52)])
def test_tolerances_go_by_the_dtype(dtype: str, digits: int) -> None:
    model = nn.Linear(2, 2).to(dtype)
    assert tolerance_of(model) == pytest.approx(2.0 ** (-0.6 * digits))
