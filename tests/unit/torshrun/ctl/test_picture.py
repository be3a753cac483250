"""What the keys of a run tell, and how its nodes are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.rows import header, keys, node

from torshrun.ctl.picture import NotDone, Picture, find_nodes, read
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import NodeRow, SizeWanted, VerdictRow


def test_nodes_stand_by_rank_and_those_without_one_last() -> None:
    spare = replace(node("a", state="waiting"), host="spare")
    picture = read("job", keys(header(size=2), node("b", 1), spare, node("c", 0)))
    assert [row.node for row in picture.nodes] == ["c", "b", "a"]
    assert [row.node for row in picture.spares] == ["a"]
    assert picture.phase == "running"


def test_a_node_of_an_earlier_round_has_no_part() -> None:
    old = replace(node("a", 0), token="earlier")
    picture = read("job", keys(header(), old, node("b", 0)))
    assert [picture.takes_part(row) for row in picture.nodes] == [True, False]
    assert [row.node for row in picture.nodes] == ["b", "a"]


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({}, "gathering"),
        ({"ctl/round": header()}, "running"),
        ({"ctl/round": header(phase="closing")}, "changing"),
        ({"ctl/verdict": VerdictRow(outcome="succeeded", code=0, reason="")}, "ended"),
    ],
)
def test_phases(changes: dict[str, object], phase: str) -> None:
    items = {name: rows.encode(record) for name, record in changes.items()}
    assert read("job", {**keys(node("a", 0)), **items}).phase == phase


def test_what_is_no_record_is_not_there() -> None:
    items = {"ctl/round": b"\xff", "nodes/a": b"[]", "ctl/verdict": b"{}", "want/size": b"7"}
    picture = read("job", items)
    assert not picture.is_there
    assert picture.limits is None


def test_a_row_under_another_nodes_name_counts_for_nobody() -> None:
    assert read("job", {"nodes/b": rows.encode(node("a", 0))}).nodes == ()


def test_what_was_asked_for_goes_before_the_header() -> None:
    wanted = rows.encode(SizeWanted(min_nodes=2, max_nodes=5))
    picture = read("job", {**keys(header()), "want/size": wanted, "want/drain/a": b"{}"})
    assert picture.limits == (2, 5)
    assert picture.asked_to_go == {"a"}


@pytest.mark.parametrize("name", ["n1-77", "n1", "10.0.0.1", "1"])
def test_a_node_has_four_names(name: str) -> None:
    assert [row.node for row in find_nodes(_two(), [name])] == ["n1-77"]


def test_a_node_named_twice_is_found_once() -> None:
    assert len(find_nodes(_two(), ["n1", "1", "n0"])) == 2


def test_a_name_that_nobody_has_is_answered_by_those_that_there_are() -> None:
    with pytest.raises(NotDone, match=r"no node n7.* n0-77 \(10\.0\.0\.0\), n1-77"):
        find_nodes(_two(), ["n0", "n7"])


def test_a_name_of_two_nodes_is_no_answer() -> None:
    twins = [replace(node(name, rank), host="n") for rank, name in enumerate("ab")]
    with pytest.raises(NotDone, match=r"n names 2 nodes.*one of a, b"):
        find_nodes(read("job", keys(header(size=2), *twins)), ["n"])


def test_a_node_that_has_left_has_no_name_any_more() -> None:
    with pytest.raises(NotDone, match="are: none"):
        find_nodes(read("job", keys(header(), node("a", 0, state="left"))), ["a"])


def _two() -> Picture:
    nodes = [_called(rank) for rank in range(2)]
    return read("job", keys(header(size=2), *nodes))


def _called(rank: int) -> NodeRow:
    return replace(node(f"n{rank}-77", rank), host=f"n{rank}", address=f"10.0.0.{rank}")
