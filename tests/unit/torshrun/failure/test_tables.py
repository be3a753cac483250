"""Tables of what each rank has, in the words of ranks that compare themselves."""

from __future__ import annotations

import pytest

from torshrun.failure.tables import in_a_line, table_in

THREE = {0: "0.21.0", 1: "0.19.1", 2: "0.21.0"}


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: versions differ: rank 0: 0.21.0, rank 1: 0.19.1, rank 2: 0.21.0",
        "RuntimeError: rank 0 has 0.21.0; rank 1 has 0.19.1; rank 2 has 0.21.0.",
        "RuntimeError: (rank 0 = 0.21.0, rank 1 = 0.19.1, rank 2 = 0.21.0)",
        "ValueError: ranks differ: {0: 0.21.0, 1: 0.19.1, 2: 0.21.0}",
        "ValueError: not the same on all ranks: [0.21.0, 0.19.1, 0.21.0]",
    ],
)
def test_what_each_rank_has(said: str) -> None:
    assert table_in(said, 3) == THREE
    assert table_in(said, 4) == {}


@pytest.mark.parametrize("row", ["  - Process {}: {}", " * Worker {} = {}", "rank {}: {}"])
@pytest.mark.parametrize("what", [("[2, 9]", "[2, 5]"), ("(4, 16)", "(3, 16)"), ("32000", "31998")])
def test_lines_of_an_error_that_tell_what_each_rank_has_are_a_table(
    row: str, what: tuple[str, str]
) -> None:
    rows = "\n".join(row.format(rank, what[rank == 2]) for rank in range(100))
    said = in_a_line(f"ValueError: shapes do not fit\n\nInput shapes:\n{rows}")
    assert said == f"ValueError: shapes do not fit … ranks 0-1, 3-99: {what[0]}; rank 2: {what[1]}"
    assert table_in(said, 100) == {rank: what[rank == 2] for rank in range(100)}


def test_an_error_without_such_lines_is_its_first_line() -> None:
    assert in_a_line("ValueError: bad\nrank 1 is late\nranks 0-99999: x") == "ValueError: bad"
    assert table_in("ranks 0-99999 have what", 2) == {}


def test_texts_stay_as_they_are_written() -> None:
    assert table_in("ranks have {0: 'a, b', 1: 'c'}", 2) == {0: "'a, b'", 1: "'c'"}
    assert table_in("ranks have ['x', 'y']", 2) == {0: "'x'", 1: "'y'"}


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: operands could not be broadcast together with shapes (3,) (4,)",
        "ValueError: cannot reshape array of size 12 into shape [3, 5]",
        "RuntimeError: rank 1: too old",
        "KeyError: {0: 1, 1: 2}",
        "",
    ],
)
def test_what_is_no_table_of_ranks(said: str) -> None:
    assert table_in(said, 2) == {}
