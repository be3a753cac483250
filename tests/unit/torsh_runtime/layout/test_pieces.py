"""Pieces of tensors, against numpy's own indexing."""

from itertools import pairwise, product

import numpy as np
import pytest

from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import (
    Flat,
    Partial,
    Piece,
    Replicate,
    Shard,
    TensorLayout,
    even_cuts,
    overlaps,
)


def _numbers(piece):
    """The numbers of a piece's elements, by slicing."""
    whole = np.arange(np.prod(piece.global_shape, dtype=int)).reshape(piece.global_shape)
    box = whole[tuple(slice(o, o + n) for o, n in zip(piece.offsets, piece.shape, strict=True))]
    return box.reshape(-1)[piece.start : piece.end]


def _random_piece(random, shape):
    offsets = [int(random.integers(0, size + 1)) for size in shape]
    sizes = [int(random.integers(0, n - o + 1)) for n, o in zip(shape, offsets, strict=True)]
    start, end = sorted(random.integers(0, np.prod(sizes, dtype=int) + 1, 2).tolist())
    return Piece(shape, tuple(offsets), tuple(sizes), start, end)


@pytest.mark.parametrize("shape", [(), (7,), (1,), (0,), (3, 5), (4, 1, 3), (2, 3, 4, 2), (3, 0)])
def test_runs_and_overlaps_are_those_of_slices(shape):
    random = np.random.default_rng(0)
    for _ in range(100):
        ours, theirs = _random_piece(random, shape), _random_piece(random, shape)
        mine, its = _numbers(ours), _numbers(theirs)
        found = [range(run.number, run.number + run.length) for run in ours.runs()]
        assert [number for run in found for number in run] == mine.tolist()
        assert [run.at for run in ours.runs()] == [0, *np.cumsum([*map(len, found)])][:-1]
        common = []
        for ours_at, theirs_at, length in overlaps(ours, theirs):
            part = mine[ours_at : ours_at + length]
            assert (part == its[theirs_at : theirs_at + length]).all()
            common += part.tolist()
        assert common == sorted({*mine.tolist()} & {*its.tolist()})


def test_whole_rows_are_one_run():
    assert len([*Piece((6, 4), (2, 0), (3, 4), 0, 12).runs()]) == 1
    assert len([*Piece.whole((5, 6, 7)).runs()]) == 1


@pytest.mark.parametrize("shape", [(5,), (6, 7), (3, 4, 5), (1, 1)])
@pytest.mark.parametrize("ranks", [(2, 3), (1, 4), (4, 2)])
def test_what_is_sharded_twice_is_whole(shape, ranks):
    outer, inner = ranks
    found = []
    for at in range(outer):
        left = TensorLayout(shape, (("tp", outer, Shard(len(shape) - 1)),)).piece({"tp": at})
        cuts = Flat(even_cuts(left.size, inner))
        layout = TensorLayout(
            shape,
            (("tp", outer, Shard(len(shape) - 1)), ("dp", inner, cuts), ("r", 2, Replicate())),
        )
        for place in range(inner):
            found += _numbers(layout.piece({"tp": at, "dp": place, "r": 1})).tolist()
    assert sorted(found) == [*range(np.prod(shape))]


@pytest.mark.parametrize(("size", "parts"), [(0, 3), (1, 4), (10, 3), (12, 4), (7, 1)])
def test_even_cuts_differ_by_one(size, parts):
    cuts = even_cuts(size, parts)
    sizes = {b - a for a, b in pairwise(cuts)}
    assert (cuts[0], cuts[-1]) == (0, size)
    assert max(sizes) - min(sizes) <= 1


def test_shards_are_torchs():
    torch = pytest.importorskip("torch")
    for size, parts in product(range(1, 12), range(1, 6)):
        chunks = [each.tolist() for each in torch.arange(size).chunk(parts)]
        layout = TensorLayout((size,), (("x", parts, Shard(0)),))
        own = [_numbers(layout.piece({"x": at})).tolist() for at in range(parts)]
        assert [each for each in own if each] == chunks


def test_partial_and_replicated_tensors_are_whole():
    layout = TensorLayout((2, 3), (("a", 2, Partial()), ("b", 3, Replicate())))
    assert layout.piece({"a": 1, "b": 2}) == Piece.whole((2, 3))
    assert layout.piece({"a": 0, "b": 0}).is_whole


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Piece((2,), (1,), (2,), 0, 1),
        lambda: Piece((2,), (-1,), (2,), 0, 1),
        lambda: Piece((2, 2), (0,), (2,), 0, 1),
        lambda: Piece((2,), (0,), (2,), 0, 3),
        lambda: Piece((2,), (0,), (2,), 2, 1),
        lambda: TensorLayout((2,), (("x", 2, Shard(1)),)),
        lambda: TensorLayout((2,), (("x", 2, Flat((0, 1, 2))), ("y", 2, Shard(0)))),
        lambda: TensorLayout((2,), (("x", 2, Flat((0, 2))),)),
        lambda: TensorLayout((2,), (("x", 2, Flat((0, 3, 2))),)),
        lambda: [*overlaps(Piece.whole((2,)), Piece.whole((3,)))],
    ],
)
def test_what_is_no_piece_is_refused(wrong):
    with pytest.raises(ConfigError):
        wrong()
