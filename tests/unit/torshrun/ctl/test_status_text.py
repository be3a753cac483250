"""A run as torshctl status shows it."""

from __future__ import annotations

import json

from support.rows import TOKEN, header, keys, node

from torshrun.ctl.picture import Picture, read
from torshrun.ctl.status_text import in_json, in_words
from torshrun.rendezvous import rows
from torshrun.rendezvous.rows import PlaceRow, StopWanted, VerdictRow

FULL = PlaceRow(round=3, token=TOKEN, why="the job is full")


def running() -> Picture:
    records = (
        header(size=3, world_size=5, master_addr="h", master_port=7, max_restarts=2),
        node("a", 0, nproc=2),
        node("b", 2, state="reported", outcome="failed", cause="rank 2: exit code 7"),
        node("c", state="waiting", nproc=4),
        node("d", state="left", leaving="preempted", leaving_reason="drained"),
        node("e", state="inside", round=2),
    )
    return read("job", {**keys(*records), rows.PLACES + "c": rows.encode(FULL)})


def test_a_run_in_words() -> None:
    assert in_words(running()) == (
        "run job: round 3 runs on 3 nodes with 5 workers\n"
        "  size: 1 to 4 nodes\n"
        "  restarts: 0 of 2 used\n"
        "  master: h port 7\n"
        "  leader: none at the moment\n"
        "  1 node of the round cannot be seen: starting, lost, or cut off\n"
        "\n"
        "RANK  NODE  ADDRESS   WORKERS  STATE\n"
        "0     a     10.0.0.1  0-1      runs\n"
        "2     b     10.0.0.1  2        failed: rank 2: exit code 7\n"
        "-     c     10.0.0.1  (4)      waits: the job is full\n"
        "-     d     10.0.0.1  (1)      has left: drained\n"
        "-     e     10.0.0.1  (1)      ends round 2\n"
    )


def test_a_run_that_nobody_is_left_of() -> None:
    assert in_words(read("job", keys(header(size=3)))).startswith(
        "run job: abandoned: no node of round 3 is left (torshctl forget)\n"
    )


def test_a_run_before_its_first_round() -> None:
    assert in_words(read("job", keys(node("a", state="waiting")))).startswith(
        "run job: no round yet; 1 node present\n"
    )


def test_a_run_between_rounds() -> None:
    closing = header(phase="closing", reason="node b joined")
    seen = read("job", keys(closing, node("a", 0)))
    assert "round 3 is ending: node b joined\n" in in_words(seen)


def test_a_run_that_has_ended() -> None:
    verdict = VerdictRow(outcome="failed", code=7, reason="rank 0")
    text = in_words(read("job", {rows.VERDICT: rows.encode(verdict)}))
    assert text == "run job: ended with code 7: failed, rank 0\n"


def test_what_is_asked_of_it() -> None:
    stop = rows.encode(StopWanted(code=130, reason="enough"))
    items = {
        **keys(header(), node("a", 0, holds=True)),
        rows.WANT_DRAIN + "a": rows.SET,
        rows.WANT_STOP: stop,
        rows.WAIT: rows.encode(rows.WaitRow(why="for node b to enter the round")),
    }
    text = in_words(read("job", items))
    assert "the job waits for node b to enter the round\n" in text
    assert "runs; asked to go\n" in text
    assert "its end was requested: enough\n" in text
    assert "no node is added before the next checkpoint: a\n" in text


def test_nothing_that_others_wrote_gets_at_the_terminal() -> None:
    hostile = rows.encode(rows.WaitRow(why="\x1b[2Jhostile\r\n"))
    text = in_words(read("job\x07", keys(header()) | {rows.WAIT: hostile}))
    assert "hostile" in text
    assert text.replace("\n", "").isprintable()


def test_a_run_for_programs() -> None:
    text = in_json(running())
    assert text.count("\n") == 1
    told = json.loads(text)
    assert (told["run"], told["phase"], told["limits"]) == ("job", "running", [1, 4])
    assert told["round"]["world_size"] == 5
    assert [row["id"] for row in told["nodes"]] == ["a", "b", "c", "d", "e"]
    assert told["nodes"][2]["standing"] == "waits: the job is full"
    assert told["verdict"] is None
    assert TOKEN not in text
