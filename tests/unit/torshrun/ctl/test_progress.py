"""When what was asked for is done, and what is said until then."""

from __future__ import annotations

import pytest
from support.rows import header, keys, node

from torshrun.ctl.actions import check_drain, drained, scaled, stopped
from torshrun.ctl.picture import NotDone, Picture, read
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import Header, NodeRow, SizeWanted, VerdictRow

TWO = SizeWanted(min_nodes=1, max_nodes=2)
STOPPED = VerdictRow(outcome="stopped", code=130, reason="enough")


def picture(*records: Header | NodeRow) -> Picture:
    return read("job", keys(*records))


def over(*records: Header | NodeRow) -> Picture:
    return read("job", {**keys(*records), rows.VERDICT: rows.encode(STOPPED)})


# ---- scale


def test_the_size_is_reached() -> None:
    now = picture(header(size=2), node("a", 0), node("b", 1))
    assert scaled(TWO, 2, now) == (True, "round 3 runs on 2 nodes with 0 workers")


def test_a_range_is_reached_by_what_is_there() -> None:
    assert scaled(TWO, 1, picture(header(), node("a", 0))).done


def test_missing_nodes_are_counted() -> None:
    done, text = scaled(TWO, 2, picture(header(), node("a", 0)))
    assert not done
    assert text.startswith("waiting for 1 more node: start torshrun there (round 3 runs on 1 node ")


def test_a_node_that_is_on_its_way_out_does_not_count() -> None:
    now = picture(header(size=2, drained=("b",)), node("a", 0), node("b", 1))
    assert "1 more node" in scaled(TWO, 2, now).text


def test_spares_are_let_in_first() -> None:
    now = picture(header(), node("a", 0), node("b", state="waiting"))
    assert scaled(TWO, 1, now) == (
        False,
        "waiting for the last call, after which 1 node will join "
        "(round 3 runs on 1 node with 0 workers)",
    )


def test_a_held_job_grows_at_its_checkpoint() -> None:
    now = picture(header(), node("a", 0, holds=True), node("b", state="waiting"))
    assert "next checkpoint: until then a" in scaled(TWO, 2, now).text


def test_a_job_that_is_too_large_shrinks() -> None:
    nodes = [node(name, rank) for rank, name in enumerate("abc")]
    assert "next round" in scaled(TWO, 2, picture(header(size=3), *nodes)).text
    closing = picture(header(size=3, phase="closing", reason="so"), *nodes)
    assert scaled(TWO, 2, closing).text.endswith("(round 3 is ending: so)")


def test_before_the_first_round() -> None:
    now = picture(node("a", state="waiting"), node("b", state="waiting"))
    assert scaled(TWO, 2, now) == (
        False,
        "waiting for the next round (no round yet; 2 nodes present)",
    )


def test_a_job_that_ends_reaches_no_size() -> None:
    with pytest.raises(NotDone, match="ended meanwhile: stopped, enough"):
        scaled(TWO, 2, over(node("a", 0)))


# ---- drain


def test_a_drained_node_goes_and_the_next_round_comes() -> None:
    gone, stays = node("a", 0), node("b", 1)
    before = picture(header(size=2), gone, stays)
    assert drained([gone], before, before).text == "waiting for a to stop its workers and leave"
    between = picture(header(size=2, phase="closing", reason="so"), stays)
    assert not drained([gone], before, between).done
    told = picture(header(size=2, drained=("a",)), stays)
    assert not drained([gone], before, told).done
    after = picture(header(number=4, token="next"), stays)
    assert drained([gone], before, after) == (True, "a left: round 4 runs on 1 node with 0 workers")


def test_after_the_last_node_no_round_is_waited_for() -> None:
    before = picture(header(), node("a", 0))
    gone = picture(header(phase="closing", reason="so"), node("a", 0, state="left"))
    assert drained(before.nodes, before, gone) == (True, "a left, and no node of the run is left")


def test_a_drained_spare_just_goes() -> None:
    spare, stays = node("a", state="waiting"), node("b", 0)
    before = picture(header(), spare, stays)
    assert drained([spare], before, picture(header(), stays)).done


def test_a_job_that_ends_by_it_has_done_what_was_asked() -> None:
    gone = node("a", 0)
    before = picture(header(), gone)
    assert drained([gone], before, over(header())).text == "a left, and the job has ended: enough"


def test_too_few_would_be_left() -> None:
    asked, stays = node("a", 0), node("b", 1)
    now = picture(header(size=2, min_nodes=2), asked, stays)
    with pytest.raises(NotDone, match=r"needs 2 nodes and would have 1.*--force"):
        check_drain([asked], now)
    check_drain([asked], picture(header(size=2, min_nodes=2), asked, stays, node("c")))


# ---- stop


def test_a_stop_is_done_when_nobody_is_left() -> None:
    assert stopped(picture(header(), node("a", 0))).text == "waiting for the nodes to end the job"
    assert stopped(over(node("a", 0))) == (
        False,
        "run job has ended with code 130: stopped, enough; waiting for 1 node to leave",
    )
    assert stopped(over(node("a", 0, state="left"))) == (
        True,
        "run job has ended with code 130: stopped, enough",
    )


def test_a_job_without_nodes_says_so() -> None:
    assert "none is present, or none reaches the store" in stopped(picture(header())).text
