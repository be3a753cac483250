"""How a worker's Python ended, from what its start hook wrote, or somebody else in its place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.exits import PEER_LOST, VALUE_ERROR, an_exit, raised

from torshrun.failure.ending import NO_ENDING, Ending, parse
from torshrun.failure.exit_diagnosis import blamed, diagnose
from torshrun.failure.exits import Exit, how
from torshrun.failure.explanation import explain
from torshrun.failure.kinds import Kind
from torshrun.failure.last_words import last_words
from torshrun.failure.report import describe

TRACE = VALUE_ERROR.decode()
RAISED = Ending(
    is_watched=True,
    by="exception",
    is_own=True,
    at=2.0,
    trace=TRACE,
    errors=("ValueError: bad",),
    frame="t.py:3",
    code=1,
)
LEFT = Ending(is_watched=True, by="exit", is_own=True)
SILENT = Ending(is_watched=True)


def line(how: str, **facts: Any) -> str:
    noted = {"own": True, "at": 2.0, "code": 1, "trace": TRACE, "errors": ["ValueError: bad"]}
    return json.dumps({"how": how, **noted, "frame": "t.py:3", **facts}) + "\n"


def test_the_line_about_the_end_counts() -> None:
    assert parse("") == SILENT
    assert parse(line("exception")) == RAISED
    assert parse(line("asked") + line("exception") + '{"how": "exit"}\n') == RAISED
    assert parse(line("asked") + '{"how": "exit", "own": true}\n') == LEFT
    asked = parse(line("asked", places=[["t.py", 4]]))
    assert (asked.in_flight, asked.places, asked.errors) == (
        True,
        (("t.py", 4),),
        ("ValueError: bad",),
    )
    assert not parse('{"how": "asked"}').in_flight
    for by in ("exit", "left"):
        chosen = parse(line(by, port=99999))
        assert (chosen.by, chosen.is_chosen, chosen.errors) == (by, True, ("ValueError: bad",))
        assert chosen.is_watched
    assert parse(line("exception", port=8000)).port == 8000
    held = parse(line("exception", holder=12, held="x.lock"))
    assert (held.holder, held.held) == (12, "x.lock")


def test_of_a_process_that_the_worker_started_nothing_follows_for_its_own_words() -> None:
    assert not parse('{"how": "exit", "own": false}').is_watched


@pytest.mark.parametrize(
    "text",
    ["[", "7", "[]", "[" * 9999, '{"how": 3}', '{"how": "exception"}', '{"how":"x","trace":"y"}'],
)
def test_nonsense_says_nothing(text: str) -> None:
    assert parse(text) == SILENT


FACTS = st.dictionaries(
    st.sampled_from(
        ["how", "own", "at", "trace", "errors", "frame", "code", "places", "port", "holder", "held"]
    ),
    st.sampled_from(
        [
            "exception",
            "asked",
            "exit",
            "left",
            "shown",
            1,
            -1,
            1e300,
            None,
            ["x"],
            [["p", 3]],
            {},
            "",
        ]
    ),
)


@given(st.lists(FACTS, max_size=3))
def test_whatever_a_worker_writes_is_survived(lines: list[dict[str, object]]) -> None:
    ending = parse("\n".join(map(json.dumps, lines)))
    assert ending.is_watched or ending.by == "exit"
    for is_raised in (False, True):
        explain([an_exit(0, 256, ending=ending, raised=is_raised, stderr=VALUE_ERROR)])


def report(exit_: Exit) -> str:
    return describe(explain([exit_]), "x")


def test_the_exception_that_ended_python_wins_over_all_that_was_written() -> None:
    written = raised("KeyError: 1") + b"bye\n"
    exit_ = an_exit(0, 256, ending=RAISED, raised=True, stderr=written, account="OSError: 2")
    assert last_words(exit_).errors == ("ValueError: bad",)
    told = report(exit_)
    assert "  | ValueError: bad\n  the last lines of its stderr:\n" in told
    assert told.endswith("  | bye\n  x")


def test_of_who_ended_without_an_exception_a_traceback_at_the_very_end_is_a_likely_reason() -> None:
    said = b"lr 1\n" + raised("OSError: [Errno 28] No space left on device")
    for ending in (LEFT, SILENT):
        exit_ = an_exit(0, 256, ending=ending, stderr=said + b"2026-01-02 03:04:05 INFO bye\n")
        words = last_words(exit_)
        assert (words.is_handled, words.lines[-1]) == (True, words.errors[-1])
        finding = explain([exit_]).finding
        assert finding is not None
        assert (finding.certainty, finding.reading.kind) == ("likely", Kind.DISK_FULL)
    exit_ = an_exit(0, 256, ending=LEFT, stderr=said + b"quota used up\n")
    finding = explain([exit_]).finding
    assert finding is not None
    assert (finding.certainty, finding.reading.kind) == ("certain", Kind.EXIT_CODE)


def test_what_an_error_file_says_of_an_exception_that_was_handled_is_not_sure() -> None:
    finding = explain([an_exit(0, 256, ending=LEFT, account="OSError: 2")]).finding
    assert finding is not None
    assert finding.certainty == "likely"


def test_a_line_that_is_not_the_last_one_may_be_of_something_else() -> None:
    early = b"WARNING disk full, retrying\ncannot go on: no space left on device\nleaving\n"
    late = b"starting\nNo space left on device\n"
    finding = explain([an_exit(0, 256, ending=LEFT, stderr=late)]).finding
    assert finding is not None
    assert (finding.certainty, finding.reading.kind) == ("certain", Kind.DISK_FULL)
    assert explain([an_exit(0, 256, ending=LEFT, stderr=early)]).finding is not None
    unsure = explain([an_exit(0, 256, ending=LEFT, stderr=late + b"leaving\n")]).finding
    assert unsure is not None
    assert unsure.certainty == "likely"


def test_who_handled_the_loss_of_a_peer_and_left_is_not_the_cause() -> None:
    lost = raised("torsh_runtime.errors.PeerLost: rank 1 was lost during all_reduce")
    follower = an_exit(0, 256, ending=LEFT, stderr=lost + b"saving\nsaved\nleaving\n" * 9)
    assert blamed(follower) is not None
    finding = explain([follower, an_exit(1, 11)]).finding
    assert finding is not None
    assert finding.ranks == (1,)


def test_who_was_stopped_after_its_exception_ends_with_the_exceptions_code() -> None:
    late = an_exit(1, 15, stopped=True, raised=True, ending=RAISED)
    assert (late.code, how(late)) == (1, "exit code 1, stopped by torshrun before it had ended")
    aborted = an_exit(1, 6, raised=True, ending=RAISED)
    assert (aborted.code, diagnose(aborted).kind) == (1, Kind.EXCEPTION)
    assert an_exit(1, 15, stopped=True, ending=NO_ENDING).code == 143


def test_an_exception_that_was_being_handled_is_evidence() -> None:
    ending = parse(line("asked", errors=["ConnectionError: bucket-3"]))
    late = raised("torsh_runtime.errors.CommTimeout: x")
    stack = 'Current thread 0x1 (most recent call first):\n  File "t.py", line 9 in retry'
    exits = [
        an_exit(0, 256, stderr=late),
        an_exit(1, 15, stopped=True, ending=ending, stack=stack),
    ]
    told = describe(explain(exits), "x")
    assert "  rank 1: was handling ConnectionError: bucket-3\n" in told


def test_of_ranks_that_failed_alike_the_words_are_of_the_one_that_is_named_first() -> None:
    late = replace(RAISED, at=3.0)
    exits = [
        an_exit(1, 256, ending=late, raised=True, at=4.0),
        an_exit(0, 256, ending=RAISED, raised=True, at=5.0),
    ]
    told = describe(explain(exits), "x")
    assert "ranks 0-1 failed first: exit code 1, first rank 0," in told
    assert "\n  rank 0: its traceback:" in told


CHOSEN = replace(RAISED, by="exit")


def test_what_was_handled_when_a_script_chose_its_exit_code_is_why_it_ended() -> None:
    exit_ = an_exit(1, 256, ending=CHOSEN, raised=True, stderr=b"leaving\n")
    lost = replace(CHOSEN, errors=("torsh_runtime.errors.PeerLost: rank 1 was lost during x",))
    finding = explain([an_exit(0, 256, ending=lost, raised=True), exit_]).finding
    assert finding is not None
    assert (finding.ranks, finding.certainty, finding.reading.kind) == (
        (1,),
        "certain",
        Kind.EXCEPTION,
    )
    assert "the exception that it handled when it called sys.exit():" in report(exit_)


def test_who_leaves_with_0_while_it_handles_an_exception_tells_which() -> None:
    left = an_exit(1, 0, ending=replace(CHOSEN, code=0))
    finding = explain([an_exit(0, 256, stderr=PEER_LOST), left]).finding
    assert finding is not None
    assert (finding.ranks, finding.reading.kind) == ((1,), Kind.EARLY_EXIT)
    assert "rank 1: was handling ValueError: bad" in finding.evidence
