"""Where flat parameters are cut: parts are equally large, and have whole rows."""

from __future__ import annotations

import math
import random

import pytest

from torsh_runtime.layout import FlatLayout, even_layout, even_owners, row_size

Shapes = list[tuple[int, ...]]

BLOCK: Shapes = [(4096,), (4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (4096,)]


def check(layout: FlatLayout, shapes: Shapes) -> int:
    """Return the padding of a layout, after a look at what it promises."""
    assert len({end - start for start, end in zip(layout.cuts, layout.cuts[1:], strict=False)}) == 1
    end = 0
    for start, shape in zip(layout.starts, shapes, strict=True):
        assert start >= end
        end = start + math.prod(shape)
        within = [cut - start for cut in layout.cuts if start < cut < end]
        assert not any(offset % row_size(shape) for offset in within)
    assert end <= layout.cuts[-1]
    return layout.cuts[-1] - sum(map(math.prod, shapes))


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 8, 64])
def test_a_block_of_a_large_model_has_little_padding(parts: int) -> None:
    layout = even_layout(BLOCK, parts)
    assert layout is not None
    assert check(layout, BLOCK) * 100 < sum(map(math.prod, BLOCK))


def test_any_shapes_are_cut_between_rows_or_refused() -> None:
    random.seed(1)
    found = 0
    for _ in range(2000):
        dims = random.choices(range(4), k=random.randint(1, 8))
        shapes = [tuple(random.randint(0, 40) for _ in range(dim)) for dim in dims]
        parts = random.randint(1, 9)
        layout = even_layout(shapes, parts)
        if layout is not None:
            found += 1
            total = sum(map(math.prod, shapes))
            assert check(layout, shapes) <= max(total // 8, 4096 * parts)
    assert found > 1500


@pytest.mark.parametrize("shapes", [[], [(0,)], [(0, 3), (4, 0)]])
def test_tensors_without_elements_have_a_place(shapes: Shapes) -> None:
    layout = even_layout(shapes, 2)
    assert layout is not None
    check(layout, shapes)


def test_rows_that_have_no_common_multiple_are_refused() -> None:
    assert even_layout([(1009, 997), (997, 1013), (1013, 1019)], 8) is None


def test_owners_have_equal_parts_if_their_tensors_are_about_equal() -> None:
    layout = even_owners([5000, 3000, 7900], [0, 0, 1], 2)
    assert layout is not None
    assert (layout.starts, layout.cuts) == ((0, 5000, 8000), (0, 8000, 16000))
    assert even_owners([500_000, 30], [0, 1], 2) is None
