"""Records in the store."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.rendezvous.rows import (
    Header,
    LeaderRow,
    NodeRow,
    PlaceRow,
    StopWanted,
    VerdictRow,
    base,
    decode,
    encode,
)

ROW = NodeRow(node="a", sequence=3, state="inside", host="h", seconds=1.5, round=2)
HEADER = Header(number=1, phase="open", token="t", fence=4, size=1, drained=("x", "y"))


@pytest.mark.parametrize("record", [ROW, HEADER, PlaceRow(round=1, token="t")])
def test_a_record_comes_back_as_it_was(record: Any) -> None:
    assert decode(type(record), encode(record)) == record


def test_unknown_fields_are_ignored() -> None:
    content = json.loads(encode(ROW)) | {"mood": "good"}
    assert decode(NodeRow, json.dumps(content).encode()) == ROW


@pytest.mark.parametrize(
    "change",
    [
        {"state": "odd"},
        {"nproc": "2"},
        {"sequence": True},
        {"node": None},
        {"seconds": float("nan")},
    ],
)
def test_a_wrong_type_makes_it_no_record(change: dict[str, Any]) -> None:
    content = json.loads(encode(ROW)) | change
    assert decode(NodeRow, json.dumps(content).encode()) is None


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "splendid"},
        {"sequel": "\x1b[2J"},
        {"code": 256},
        {"code": -1},
        {"code": 0},
        {"outcome": "succeeded"},
    ],
)
def test_no_verdict_is_believed_that_no_leader_could_have_written(change: dict[str, Any]) -> None:
    verdict = VerdictRow(outcome="failed", code=3, reason="boom", sequel="no budget")
    assert decode(VerdictRow, encode(verdict)) == verdict
    content = json.loads(encode(verdict)) | change
    assert decode(VerdictRow, json.dumps(content).encode()) is None


@pytest.mark.parametrize("code", [0, -1, 256])
def test_a_job_is_stopped_with_the_code_of_a_stop_only(code: int) -> None:
    assert decode(StopWanted, json.dumps({"code": code, "reason": ""}).encode()) is None


def test_a_missing_field_makes_it_no_record() -> None:
    assert decode(VerdictRow, b'{"outcome": "failed"}') is None


@pytest.mark.parametrize("name", ["a/want/hold", "../a", "a b", "ä"])
def test_no_runs_keys_are_among_those_of_another(name: str) -> None:
    assert base("job-1.x") == "torsh/job-1.x/"
    inner = base(name).removeprefix("torsh/").removesuffix("/")
    assert "/" not in inner
    assert unquote(inner) == name


@given(st.binary() | st.text().map(str.encode))
def test_garbage_is_no_record_and_no_error(value: bytes) -> None:
    assert decode(NodeRow, value) is None
    assert decode(Header, b"[" * 5000 + value) is None


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0},
        {"number": -1},
        {"number": 2**60},
        {"min_nodes": 0},
        {"min_nodes": 5, "max_nodes": 4},
        {"restarts": -1},
        {"delay": 1e9},
    ],
)
def test_no_round_is_believed_that_cannot_be(change: dict[str, Any]) -> None:
    content = json.loads(encode(HEADER)) | change
    assert decode(Header, json.dumps(content).encode()) is None


@pytest.mark.parametrize("host", ["a" * 64, "a..b", "a b", ""])
def test_no_leader_is_sought_at_a_name_that_is_none(host: str) -> None:
    def led(endpoint: str) -> LeaderRow:
        return LeaderRow(node="n", endpoint=endpoint, token="t")

    assert decode(LeaderRow, encode(led("tcp:node-0:1"))) is not None
    assert decode(LeaderRow, encode(led(f"tcp:{host}:1"))) is None
