"""What nodes tell each other of their ranks' ends: that it fits, and that nobody is believed more
than can be so.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.failure.blocked_at import BlockedAt
from torshrun.failure.exported_reports import (
    TESTIMONY_CHARS,
    decode,
    decode_finding,
    decode_hang,
    encode,
    encode_finding,
)
from torshrun.failure.kinds import Diagnosis, Kind
from torshrun.failure.numbers import Numbers
from torshrun.failure.rank_report import RankReport
from torshrun.failure.root_cause import MOST_EVIDENCE, RootCause
from torshrun.failure.suspect import Suspect

RANKS = range(8, 16)
OWN = RankReport(
    rank=9,
    node=1,
    end="failed",
    how="exit code 1",
    where="host h, pid 7, after 1.2 s",
    at=17.25,
    reading=Diagnosis(Kind.IMPORT, "why", "advice"),
    said="ImportError: x",
    is_unsure=True,
    unmade="could not write a.json",
    removed="deleted b.pt",
    logged="KeyError: 1",
    numbers=Numbers(form="f", finite=3, line="loss nan", grows=True),
    alike="abc",
    standing=BlockedAt(place="train.py:3", line="import x"),
)
FOLLOWER = RankReport(
    rank=8,
    node=1,
    end="failed",
    how="exit code 1",
    where="host h",
    reading=Diagnosis(Kind.PEER_LOST),
    blame=Suspect(how="mismatch", ranks=(9,), op="f", calls={8: "f()", 9: "g()"}, text="t"),
    call="f(float32[3])",
    standing=BlockedAt(
        call="f",
        full="f()",
        last="f()",
        group=0,
        sequence=3,
        entered={0: 3},
        awaited=0,
        mesh="pp 1",
        doing="F2",
    ),
)
STOPPED = RankReport(
    rank=10,
    node=1,
    end="stopped",
    how="killed",
    where="host h",
    is_frozen=True,
    thread="E: x",
    handles="E: y",
)


def test_what_is_told_comes_back() -> None:
    told = encode([OWN, FOLLOWER, STOPPED])
    assert decode(told, RANKS, 1, "h") == (FOLLOWER, OWN, STOPPED)


def test_ranks_that_are_alike_take_the_room_of_one() -> None:
    def waiting(rank: int) -> RankReport:
        return RankReport(
            rank=rank, end="stopped", how="killed", where=f"pid {rank}", at=float(rank)
        )

    told = encode([waiting(rank) for rank in range(100_000, 100_256)])
    assert len(told) < 200
    assert len(decode(told, range(100_000, 100_256), 3)) == 256


def test_of_ranks_that_all_differ_those_that_matter_are_told() -> None:
    many = [
        RankReport(rank=rank, end="failed", how="x" * 300 + str(rank), blame=Suspect(how="lost"))
        for rank in range(1000)
    ]
    told = encode([*many, RankReport(rank=1000, end="failed", how="KeyError", at=99.0)], "hang")
    assert len(told) <= TESTIMONY_CHARS
    found = decode(told, range(2000), 0)
    assert found[-1].rank == 1000
    assert len(found) > 10
    assert decode_hang(told) == "hang"


def test_a_node_tells_of_its_own_ranks_alone() -> None:
    told = encode([OWN, FOLLOWER, STOPPED])
    assert [each.rank for each in decode(told, range(9, 10), 4)] == [9]
    assert decode(told, range(100, 200), 4) == ()
    assert decode(told, range(0), 4) == ()
    assert decode(told, range(9, 10), 4)[0].node == 4


def test_numbers_that_nobody_has_cost_nothing() -> None:
    groups = [{"ranks": "0-999999999", "end": "done", "kind": "exit code"}] * 100
    assert len(decode(json.dumps(groups), RANKS, 0)) == len(RANKS)


GOOD = {"ranks": "9", "end": "failed", "kind": "exception", "how": "exit code 1"}


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": 9},
        {"ranks": "nine"},
        {"ranks": "9-"},
        {"end": "exploded"},
        {"kind": "evil"},
        {"kind": None},
        {"how": 3},
        {"at": "now"},
        {"at": -1},
        {"at": True},
        {"at": float("nan")},
        {"blame": 4},
        {"blame": {"how": "x"}},
        {"blame": {"how": "lost", "ranks": [-1]}},
        {"blame": {"how": "lost", "ranks": [1 << 30]}},
        {"blame": {"how": "lost", "calls": {"x": "y"}}},
        {"standing": []},
        {"standing": {"group": "0"}},
        {"standing": {"entered": {"0": True}}},
        {"standing": {"call": 5}},
    ],
)
def test_what_does_not_fit_counts_as_not_said(change: dict[str, Any]) -> None:
    assert len(decode(json.dumps([GOOD]), RANKS, 0)) == 1
    assert decode(json.dumps([{**GOOD, **change}]), RANKS, 0) == ()
    beside = json.dumps([{**GOOD, **change}, {**GOOD, "ranks": "10"}])
    assert [each.rank for each in decode(beside, RANKS, 0)] == [10]


@pytest.mark.parametrize("text", ["", "{", "[" * 9000, "x" * 99_999, "3", '{"a": 1}', "[[]]"])
def test_nonsense_says_nothing(text: str) -> None:
    assert decode(text, RANKS, 0) == ()
    assert decode_hang(text) == ""
    assert decode_finding(text) is None


def test_texts_neither_grow_nor_command_the_terminal() -> None:
    hostile = "\x1b]0;title\x07\n" + "x" * 1000
    names = ("how", "where", "why", "advice", "said", "call", "thread")
    blame = {"how": "lost", "text": hostile}
    facts = {**GOOD, **dict.fromkeys(names, hostile), "blame": blame}
    (found,) = decode(json.dumps([facts]), RANKS, 0)
    assert found.blame is not None
    for text in (found.how, found.where, *found.reading[1:], found.said, found.blame.text):
        assert text.isprintable()
        assert len(text) <= 400


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)
names = ["ranks", "end", "kind", "how", "at", "blame", "standing", "said", "frozen"]


@given(st.text() | json_values.map(json.dumps))
def test_no_text_is_an_error(text: str) -> None:
    decode(text, RANKS, 0)
    decode_finding(text)
    decode_hang(text)


@given(st.dictionaries(st.sampled_from(names), json_values))
def test_no_group_of_ranks_is_an_error(change: dict[str, Any]) -> None:
    for witness in decode(json.dumps([{**GOOD, **change}]), RANKS, 0):
        assert witness.rank in RANKS


# ---- findings

FINDING = RootCause(
    ranks=(3, 4, 9),
    nodes=(2,),
    certainty="likely",
    reading=Diagnosis(Kind.MISSING, "why", "advice"),
    how="exit code 1",
    evidence=("rank 3: x", "rank 4: y"),
)


def test_a_finding_comes_back() -> None:
    assert decode_finding(encode_finding(FINDING)) == FINDING


def test_a_finding_fits_with_as_much_evidence_as_there_is_room_for() -> None:
    evidence = tuple(f"{number}" * 1200 for number in range(MOST_EVIDENCE))
    found = decode_finding(
        encode_finding(
            RootCause(
                certainty="certain", reading=Diagnosis(Kind.NAN), ranks=(1,), evidence=evidence
            )
        )
    )
    assert found is not None
    assert 0 < len(found.evidence) < MOST_EVIDENCE


@pytest.mark.parametrize(
    "change",
    [
        {"certainty": "absolute"},
        {"kind": "evil"},
        {"ranks": [1]},
        {"ranks": "a"},
        {"evidence": "x"},
        {"evidence": [3]},
        {"why": None},
    ],
)
def test_a_finding_that_does_not_fit_is_none(change: dict[str, Any]) -> None:
    facts = json.loads(encode_finding(FINDING))
    assert decode_finding(json.dumps({**facts, **change})) is None
