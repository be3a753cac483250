from benchmarks.launch import Figures, median_of, report
from benchmarks.machine import NEAR
from benchmarks.samples import NO_COMMON, Case, Cell, Row
from benchmarks.table import bus_bandwidth, means, medians, microseconds, render


def test_columns_align_to_the_right() -> None:
    assert render(["a", "bb"], [["100", "2"]]) == "  a  bb\n100   2"


def test_times_keep_two_decimals_while_they_are_small() -> None:
    assert [microseconds(us) for us in (0.264, 99.0, 1234.5)] == ["0.26", "99.00", "1,234"]


def test_bus_bandwidth_counts_what_must_cross() -> None:
    cells = {"ours": Cell(100.0, 100.0, 1)}
    found = [
        bus_bandwidth(Row(Case(operation), 2**20, NEAR, cells))
        for operation in ("all_reduce", "all_gather", "barrier")
    ]
    assert found == ["10.49", "5.24", "-"]


def test_a_row_without_a_common_state_shows_times_only() -> None:
    cells = {"ours": Cell(1.0, 1.0, 5), "gloo": Cell(90.0, 90.0, 5)}
    row = Row(Case("all_reduce"), 8, NO_COMMON, cells)
    text = medians([row], ["ours", "gloo", "memcpy"], {"gloo/ours": lambda row: row.ratio("gloo")})
    line = text.splitlines()[1].split()
    assert line == ["2", "8", "1.00", "90.00", *"---", "no", "common", "state", "5/5/0"]


def test_nodes_stand_beside_their_ranks() -> None:
    row = Row(Case("all_reduce", ranks=4, nodes=2), 8, NEAR, {"ours": Cell(1.0, 2.0, 5)})
    assert means([row], ["ours"]).splitlines()[1].split() == ["2x2", "8", "2.00", "near"]


def test_launchers_are_set_against_torchrun() -> None:
    figures = {
        "torshrun": Figures(first_lines_ms=[40.0, 50.0, 900.0]),
        "torchrun": Figures(first_lines_ms=[1000.0], restart_ms=[200.0]),
    }
    ours = report(figures).splitlines()[1].split()
    assert ours == ["torshrun", "50.0", "0.050", *"------"]
    assert median_of(figures, "torshrun", "restart_ms") is None
