"""Where ranks stand along axes, against numpy's own indexing."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.errors import ConfigError
from torsh_runtime.mesh.layout import Layout, resolved

SHAPES = [
    shape
    for dims in (1, 2, 3, 4)
    for shape in product((1, 2, 3), repeat=dims)
    if math.prod(shape) <= 24
]
NAMES = ("pp", "dp", "cp", "tp")


def dense(shape: tuple[int, ...]) -> tuple[Layout, np.ndarray]:
    return Layout.dense(shape, NAMES[: len(shape)]), np.arange(math.prod(shape)).reshape(shape)


def test_coordinates_and_members_of_a_whole_mesh() -> None:
    for shape in SHAPES:
        layout, table = dense(shape)
        assert layout.shape == shape
        for place in range(table.size):
            assert layout.coordinate(place) == np.unravel_index(place, shape), shape
            assert layout.members(place) == tuple(range(table.size)), shape


@pytest.mark.parametrize("count", range(1, 1 + len(NAMES)))
def test_every_choice_and_order_of_axes(count: int) -> None:
    for shape in SHAPES:
        layout, table = dense(shape)
        for dims in permutations(range(len(shape)), count):
            check_selection(layout, table, dims)


def check_selection(layout: Layout, table: np.ndarray, dims: tuple[int, ...]) -> None:
    """A selection of axes has around each place what numpy finds there."""
    part = layout.select([NAMES[dim] for dim in dims])
    flat = part.flattened("all")
    for place in range(table.size):
        at = np.unravel_index(place, table.shape)
        around = table[tuple(slice(None) if dim in dims else at[dim] for dim in range(table.ndim))]
        kept = sorted(dims)  # the order in which indexing leaves them
        wanted = around.transpose([kept.index(dim) for dim in dims]).ravel().tolist()
        which = f"axes {dims} of {table.shape}"
        assert list(part.members(place)) == list(flat.members(place)) == wanted, which
        assert part.coordinate(place) == tuple(at[dim] for dim in dims), which
        (index,) = flat.coordinate(place)
        assert wanted[index] == place, which


def test_the_lines_of_an_axis_part_the_mesh() -> None:
    for shape in SHAPES:
        layout, table = dense(shape)
        for name in layout.names:
            lines = {layout.select([name]).members(place) for place in range(table.size)}
            places = sorted(place for line in lines for place in line)
            assert places == list(range(table.size)), f"{name} of {shape}"


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_one_size_may_be_left_open(shape: list[int], data: st.DataObject) -> None:
    count = math.prod(shape)
    open_one = data.draw(st.integers(0, len(shape) - 1))
    given_shape = [-1 if dim == open_one else size for dim, size in enumerate(shape)]
    assert resolved(given_shape, count) == resolved(shape, count) == tuple(shape)


@pytest.mark.parametrize(
    ("shape", "places"),
    [((), 1), ((2, 2), 8), ((-1, -1), 4), ((-1, 3), 4), ((0,), 4), ((-2, -2), 4)],
)
def test_shapes_that_do_not_fit(shape: tuple[int, ...], places: int) -> None:
    with pytest.raises(ConfigError, match="multiply"):
        resolved(shape, places)


@pytest.mark.parametrize("size", [2.0, "2", None, np.bool_(True)], ids=repr)
def test_sizes_that_are_no_whole_numbers(size: object) -> None:
    with pytest.raises(ConfigError, match="sizes are integers"):
        resolved((size, 1), 2)  # type: ignore[arg-type]
    assert all(type(each) is int for each in resolved((np.int64(2), -1), 6))


def test_names_that_do_not_fit() -> None:
    for names in (("a",), ("a", "a"), ("a", ""), ("a", "b", "c"), ("a", 1)):
        with pytest.raises(ConfigError, match="mesh_dim_names"):
            Layout.dense((2, 2), names)
    layout = Layout.dense((2, 2), ("a", "b"))
    with pytest.raises(KeyError, match="a, b"):
        layout.select(["c"])
    with pytest.raises(ConfigError, match="twice"):
        layout.select(["a", "a"])


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4), st.data())
def test_an_axis_is_laid_out_anew_as_numpy_does_it(shape: list[int], data: st.DataObject) -> None:
    layout, table = dense(tuple(shape))
    dims = data.draw(st.permutations(range(len(shape))))
    (flat,) = layout.select([NAMES[dim] for dim in dims]).flattened("all").axes
    sizes: list[int] = []
    left = flat.size
    while left > 1:
        # The largest first, which hypothesis prefers: it would draw ones until it gives up.
        parts = [size for size in range(left, 0, -1) if left % size == 0]
        sizes.append(data.draw(st.sampled_from(parts)))
        left //= sizes[-1]
    names = [f"new {number}" for number in range(len(sizes))]
    try:
        axes = Layout(flat.divided(sizes, names))
    except ConfigError:
        return  # the rows would not be at one distance
    wanted = table.transpose(dims).reshape(sizes)
    for index, place in np.ndenumerate(wanted):
        assert axes.coordinate(int(place)) == index
    assert list(axes.members(0)) == wanted.ravel().tolist()
