import numpy as np
import pytest

from benchmarks.pattern import MOST_RANKS, STORAGE, Pattern

DTYPES = tuple(STORAGE)


def zeros(dtype: str, count: int) -> np.ndarray:
    return np.zeros(count, STORAGE[dtype])


def as_float32(array: np.ndarray, dtype: str) -> np.ndarray:
    if dtype != "bfloat16":
        return array.astype(np.float32)
    return (array.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_wrong_element_is_named(dtype: str) -> None:
    pattern, array = Pattern(dtype, 3), zeros(dtype, (1 << 20) + 100)
    pattern.fill(array, 7, 3)
    pattern.verify(array, 7, 3, "here")
    array[-1] += 1
    with pytest.raises(SystemExit, match=rf"WRONG RESULT: here, .* element {array.size - 1}"):
        pattern.verify(array, 7, 3, "here")


def test_not_a_number_is_wrong() -> None:
    with pytest.raises(SystemExit):
        Pattern("float32", 1).verify(np.full(4, np.nan, np.float32), 0, 1, "here")


def test_a_part_continues_the_pattern_of_the_whole() -> None:
    pattern, whole, part = Pattern("float16", 1), zeros("float16", 1000), zeros("float16", 500)
    pattern.fill(whole, 0, 1)
    pattern.fill(part, 500, 1)
    assert np.array_equal(whole[500:], part)


@pytest.mark.parametrize(
    ("dtype", "ranks"),
    [(dtype, ranks) for dtype in DTYPES for ranks in (2, 8, MOST_RANKS[dtype])],
)
def test_sums_over_all_ranks_are_exact_and_not_all_alike(dtype: str, ranks: int) -> None:
    total = ranks * (ranks + 1) // 2
    pattern, single, summed = Pattern(dtype, total), zeros(dtype, 600), zeros(dtype, 600)
    pattern.fill(single, 0, 1)
    pattern.fill(summed, 0, total)
    assert np.array_equal(as_float32(single, dtype) * total, as_float32(summed, dtype))
    assert len(np.unique(summed)) > 1
