import pytest

from benchmarks.sizes import (
    DEFAULT_GRID,
    bus_factor,
    format_size,
    groups,
    parse_size,
    parse_sizes,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8", 8),
        ("64Ki", 65536),
        ("64K", 65536),
        ("1MiB", 2**20),
        (" 256Mi ", 2**28),
        ("1Gi", 2**30),
    ],
)
def test_a_size_is_read_in_powers_of_1024(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "2", "6", "-8", "1.5Mi", "64Kx", "Mi", "8 bytes"])
def test_what_is_no_whole_number_of_elements_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (size|positive multiple)"):
        parse_size(text)


def test_a_list_is_sorted_and_each_size_stands_once() -> None:
    assert parse_sizes("1Mi,8,1024Ki") == (8, 2**20)


@pytest.mark.parametrize("nbytes", [*DEFAULT_GRID, 12, 1000, 3 * 2**20])
def test_a_printed_size_reads_back(nbytes: int) -> None:
    assert parse_size(format_size(nbytes)) == nbytes


def test_groups_keep_every_size_and_leave_the_large_alone() -> None:
    found = groups(DEFAULT_GRID)
    assert tuple(size for group in found for size in group) == DEFAULT_GRID
    assert [len(group) for group in found if max(group) > 16 * 2**20] == [1, 1]


def test_no_group_is_empty() -> None:
    assert groups((2**28,)) == [(2**28,)]


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("all_to_all", 0.75), ("broadcast", 1.0)],
)
def test_bus_factor_of_four_ranks(operation: str, factor: float) -> None:
    assert bus_factor(operation, 4) == factor
