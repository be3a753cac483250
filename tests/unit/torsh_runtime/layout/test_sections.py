"""Cuts of sections, uneven cuts and copies, against numpy's own indexing."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import Flat, Piece, Shard, TensorLayout, even_cuts, overlaps


@st.composite
def shards(draw: st.DrawFn, dim: int, size: int, parts: int) -> Shard:
    kind = draw(st.sampled_from(["even", "sections", "cuts", "interleaved"]))
    cuts = sorted(draw(st.lists(st.integers(0, size), min_size=parts - 1, max_size=parts - 1)))
    if kind == "sections":
        middle = draw(st.integers(0, size))
        return Shard(dim, (middle, size - middle))
    if kind == "cuts":
        return Shard.at(dim, [0, *cuts, size])
    if kind == "interleaved":
        own = [tuple((at, at + 1) for at in range(part, size, parts)) for part in range(parts)]
        return Shard(dim, parts=tuple(spans or ((0, 0),) for spans in own))
    return Shard(dim)


@st.composite
def layouts(draw: st.DrawFn) -> TensorLayout:
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    dims = draw(st.permutations(range(len(shape))))[: draw(st.integers(1, 2))]
    axes = []
    for number, dim in enumerate(dims):
        parts = draw(st.integers(1, 4))
        axes.append((f"axis {number}", parts, draw(shards(dim, shape[dim], parts))))
    return TensorLayout(shape, tuple(axes))


def places(layout: TensorLayout) -> list[dict[str, int]]:
    names = [name for name, _, _ in layout.axes]
    rows = product(*(range(size) for _, size, _ in layout.axes))
    return [dict(zip(names, row, strict=True)) for row in rows]


def indexed(piece: Piece) -> np.ndarray:
    """The numbers of a piece's elements, by numpy."""
    whole = np.arange(np.prod(piece.global_shape)).reshape(piece.global_shape)
    rows = [
        np.concatenate([np.arange(*span) for span in piece.spans_of(dim)])
        for dim in range(whole.ndim)
    ]
    return whole[np.ix_(*rows)].ravel()[piece.start : piece.end]


def numbers(piece: Piece) -> list[int]:
    return [run.number + n for run in piece.runs() for n in range(run.length)]


@given(layouts())
def test_each_element_is_in_one_place(layout: TensorLayout) -> None:
    found = Counter[int]()
    for place in places(layout):
        piece = layout.piece(place)
        assert numbers(piece) == indexed(piece).tolist()
        assert Counter(n for box in layout.pieces(place) for n in numbers(box)) == Counter(
            numbers(piece)
        )
        assert all(not box.spans for box in layout.pieces(place))
        found.update(numbers(piece))
    assert found == Counter(range(int(np.prod(layout.shape))))


@given(layouts(), st.integers(1, 4), st.data())
def test_flat_parts_of_several_boxes(layout: TensorLayout, parts: int, data: st.DataObject) -> None:
    place = data.draw(st.sampled_from(places(layout)))
    whole = layout.piece(place)
    flat = Flat(even_cuts(whole.size, parts))
    both = TensorLayout(layout.shape, (*layout.axes, ("dp", parts, flat)))
    found = [both.piece({**place, "dp": at}) for at in range(parts)]
    assert [n for piece in found for n in numbers(piece)] == numbers(whole)
    assert [whole.part(piece.start, piece.end) for piece in found] == found
    other = layout.piece(data.draw(st.sampled_from(places(layout))))
    for piece in found:
        common = [
            numbers(piece)[ours + n]
            for ours, _, length in overlaps(piece, other)
            for n in range(length)
        ]
        assert common == sorted({*numbers(piece)} & {*numbers(other)})


def test_of_a_fused_projection_each_has_some_of_query_key_and_value() -> None:
    layout = TensorLayout((12, 2), (("tp", 2, Shard(0, (6, 2, 4))),))
    assert layout.piece({"tp": 1}).spans_of(0) == ((3, 6), (7, 8), (10, 12))
    assert layout.piece({"tp": 1}).shape == (6, 2)
    assert layout.sharded() == ("tp",)


def test_the_first_of_those_that_have_the_same_is_known() -> None:
    heads = Shard(0, parts=(((0, 2),), ((0, 2),), ((2, 4),), ((2, 4),)))
    layout = TensorLayout((4,), (("tp", 4, heads),))
    assert [layout.is_first({"tp": at}) for at in range(4)] == [True, False, True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Shard(0, (1,), (((0, 1),),)),
        lambda: Shard(0, parts=(((0, 2),), ((1, 3),))),
        lambda: TensorLayout((4,), (("a", 2, Shard(0, (1, 2))),)).piece({"a": 0}),
        lambda: TensorLayout((4,), (("a", 3, Shard.at(0, (0, 2, 4))),)).piece({"a": 0}),
        lambda: TensorLayout((5,), (("a", 2, Shard.at(0, (0, 2, 4))),)).piece({"a": 0}),
        lambda: TensorLayout((4,), (("a", 2, Flat((0, 2, 4))),)).pieces({"a": 0}),
        lambda: Piece((4,), (0,), (2,), 0, 2, (((0, 1), (3, 5)),)),
        lambda: Piece((4,), (0,), (3,), 0, 2, (((0, 1), (2, 3)),)),
        lambda: Piece((4,), (2,), (2,), 0, 2, (((2, 3), (1, 2)),)),
    ],
)
def test_what_makes_no_sense_is_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        wrong()
