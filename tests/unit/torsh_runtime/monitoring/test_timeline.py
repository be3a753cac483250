"""What ranks recorded becomes events that Perfetto shows."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.traces import Event, check_trace, notes, operation, read_trace_file, slices

from torsh_runtime.monitoring.layout import RECORDING_BYTES, Operation, operations_of, words_of
from torsh_runtime.monitoring.notes import Group, groups_of, notes_of
from torsh_runtime.monitoring.timeline import events_of, joined_messages, messages_of
from torsh_runtime.monitoring.trace_events import name_events
from torsh_runtime.monitoring.trace_file import TraceNotWritten, write_trace


def trace(*arguments: Any, **options: Any) -> list[Event]:
    """Checked."""
    found = [*name_events(0, "n2"), *events_of(0, *arguments, **options)]
    check_trace(found)
    return found


def test_a_rank_is_a_process_and_a_collective_waits_and_moves() -> None:
    found = trace(
        [operation(4, "all_reduce", 1.0, 1.5, 1.75, group=9)], [], [Group(9, 2, "dp", "0-1")]
    )
    assert found[0]["args"] == {"name": "rank 0 (node n2)"}
    assert slices(found) == [("all_reduce (wait)", 1.0, 1.5), ("all_reduce (move)", 1.5, 1.75)]
    told = {"number": 4, "group": "dp", "call": "float32[10], SUM", "bytes": 40}
    assert [event["args"] for event in found if event["ph"] == "X"] == [told, told]


def test_where_all_had_come_is_not_known_there_is_one_slice() -> None:
    assert slices(trace([operation(1, "all_gather", 1.0, None, 1.5)], [])) == [
        ("all_gather", 1.0, 1.5)
    ]


def test_sections_stand_within_steps_and_operations_within_sections() -> None:
    noted = notes(
        ("step", 7, 1.0),
        ("begin", "data", 1.1),
        ("end", "data", 1.2),
        ("begin", "forward", 1.2),
        ("begin", "loss", 1.3),
        ("end", "loss", 1.4),
        ("end", "forward", 1.5),
        ("step", 8, 2.0),
    )
    done = [operation(0, "barrier", 1.300001, 1.35, 1.400001)]
    assert slices(trace(done, noted, until=2.5), "main thread") == [
        ("step 7", 1.0, 2.0),
        ("data", 1.1, 1.2),
        ("forward", 1.2, 1.5),
        ("loss", 1.3, 1.4),
        ("barrier (wait)", 1.300001, 1.35),
        ("barrier (move)", 1.35, 1.4),  # clocks differ by a microsecond
        ("step 8", 2.0, 2.5),
    ]


def test_sections_that_cross_steps_are_continued() -> None:
    noted = notes(
        *(("begin", "epoch", 1.0), ("step", 0, 1.1), ("begin", "data", 1.2), ("step", 1, 1.3)),
        *(("end", "data", 1.4), ("end", "epoch", 1.5)),
    )
    assert slices(trace([], noted, until=2.0)) == [
        ("epoch", 1.0, 1.5),
        ("step 0", 1.1, 1.3),
        ("data", 1.2, 1.3),
        ("step 1", 1.3, 1.5),
        ("data", 1.3, 1.4),
        ("step 1", 1.5, 2.0),
    ]


def test_threads_and_groups_have_tracks_of_their_own() -> None:
    done = [
        operation(0, "all_reduce", 1.0, 1.1, 1.6, in_background=True),
        operation(1, "wait", 1.2, None, 1.6, elements=0, nbytes=0),
        operation(2, "recv", 1.7, None, 1.9, root=1),
        operation(3, "recv", 1.8, None, 2.0, root=1),  # at the same time
    ]
    noted = notes(("step", 0, 0.9), ("begin", "load", 1.0, 3), ("end", "load", 1.3, 3))
    found = trace(done, noted, joined=())
    names = ("step 0", "wait", "recv", "recv")
    assert tuple(name for name, *_ in slices(found, "main thread")) == names
    assert slices(found, "thread 3") == [("load", 1.0, 1.3)]
    assert [name for name, *_ in slices(found, "default group")] == [
        "all_reduce (wait)",
        "all_reduce (move)",
    ]


def test_who_crosses_sections_of_the_main_thread_is_another_thread() -> None:
    noted = notes(("begin", "data", 1.0), ("end", "data", 2.0))
    found = trace([operation(0, "barrier", 1.5, 1.6, 2.5)], noted)
    assert [each[0] for each in slices(found, "other threads")] == [
        "barrier (wait)",
        "barrier (move)",
    ]


def test_what_is_under_way_ends_at_the_moment_and_says_so() -> None:
    found = trace([operation(3, "all_reduce", 1.0)], notes(("begin", "data", 0.5)), until=2.0)
    assert slices(found) == [("data", 0.5, 2.0), ("all_reduce", 1.0, 2.0)]
    assert [event["args"]["running"] for event in found if event["ph"] in "XE"] == [True, True]


def test_what_is_missing_is_said_where_it_is() -> None:
    done = [operation(0, "barrier", 1.0, 1.0, 1.25), operation(40, "barrier", 2.0, 2.0, 2.25)]
    noted = [
        each._replace(number=9 * each.number) for each in notes(("step", 0, 1.0), ("step", 1, 2.0))
    ]
    found = trace(done, noted)
    assert slices(found, "not recorded") == [
        ("39 operations of rank 0 are missing here", 1.25, 2.0),
        ("8 notes of rank 0 are missing here", 2.0, 2.0),
    ]
    assert ("step 0", 1.0, 1.0) in slices(found, "main thread")  # when it ended is not known


def test_messages_are_arrows_if_both_ends_are_known() -> None:
    groups = [Group(5, 2, "pp", "3,1")]
    sent = [operation(n, "send", 1.0 + n, None, 1.5 + n, root=1, group=5) for n in range(3)]
    got = [operation(n, "recv", 1.0 + n, None, 1.7 + n, root=0, group=5) for n in range(2)]
    ends = [*messages_of(3, sent, groups), *messages_of(1, got, groups)]
    joined = joined_messages(ends)
    assert {each.sequence for each in joined} == {0, 1}
    found = [
        event
        for rank, held in ((3, sent), (1, got))
        for event in events_of(rank, held, [], groups, joined=joined)
        if event["ph"] in "sf"
    ]
    check_trace(sorted(found, key=lambda event: event["ts"]))
    assert [(event["ph"], event["pid"], event["ts"]) for event in found] == [
        ("s", 4, 1e6),
        ("s", 4, 2e6),
        ("f", 2, 1699999.9),
        ("f", 2, 2699999.9),
    ]


def test_who_waits_has_an_arrow_from_what_it_waits_for() -> None:
    done = [
        operation(0, "all_reduce", 1.0, 1.1, 2.0, in_background=True),
        operation(1, "all_reduce", 1.05, 1.1, 1.2, in_background=True),
        operation(2, "wait", 1.5, None, 2.0, awaited=0, elements=0, nbytes=0),
        operation(3, "wait", 2.1, None, 2.2, awaited=1, elements=0, nbytes=0),
        operation(4, "wait", 2.3, None, 2.4, awaited=9, elements=0, nbytes=0),
    ]
    found = trace(done, [])
    assert [(e["ph"], e["ts"]) for e in found if e["ph"] in "sf"] == [
        ("s", 1.5e6),
        ("f", 1999999.9),
    ]
    assert [name for name, *_ in slices(found, "main thread")] == [
        *("wait for all_reduce", "wait for all_reduce", "wait")
    ]


def test_numbers_that_were_passed_over_are_not_missing() -> None:
    held = [
        operation(3, "recv", 1.0, None, 50.0),  # in the background all the time
        *(operation(5000 + n, "barrier", 10.0 + n, 10.1 + n, 10.2 + n) for n in range(5)),
        *(operation(5020 + n, "barrier", 20.0 + n, 20.1 + n, 20.2 + n) for n in range(5)),
    ]
    assert not slices(trace(held, [], joined=()), "not recorded")


def test_a_receiver_waits_for_its_sender() -> None:
    found = trace([operation(0, "recv", 1.0, 1.5, 1.75, root=1)], [], joined=())
    assert slices(found) == [("recv (wait)", 1.0, 1.5), ("recv (move)", 1.5, 1.75)]


def test_numbers_are_counters_and_those_that_are_none_are_told() -> None:
    noted = notes(("scalar", "loss", 1.0, 0.5), ("scalar", "loss", 1.1, float("nan")))
    found = trace([operation(0, "all_reduce", 1.0, 1.0, 1.015)], noted)
    values = [(e["name"], e["args"]["value"]) for e in found if e["ph"] == "C"]
    assert values == [("loss", 0.5), ("bytes/s", 4000), ("bytes/s", 0)]
    assert [event["name"] for event in found if event["ph"] == "i"] == ["loss is nan"]


def test_a_failure_is_told() -> None:
    found = trace([operation(2, "all_reduce", 1.0, None, 1.5, state="failed")], [])
    assert [e["name"] for e in found if e["ph"] == "i"] == ["all_reduce failed"]


def test_a_part_of_time_begins_with_what_is_open_then() -> None:
    noted = notes(("step", 0, 1.0), ("begin", "data", 1.1), ("step", 1, 3.0), ("end", "data", 3.5))
    done = [
        operation(0, "barrier", 1.2, 1.3, 1.4),
        operation(1, "all_reduce", 1.5, 1.6, 2.5, in_background=True),
        operation(2, "barrier", 1.7, 1.8, 1.9),
        operation(3, "barrier", 2.6, 2.7, 2.8),
        operation(4, "barrier", 3.7, 3.8, 3.9),
    ]
    found = trace(done, noted, since=2.0, until=3.2, shift=-2.0)
    assert slices(found, "main thread") == [
        ("step 0", 0.0, 1.0),
        ("data", 0.0, 1.0),
        ("barrier (wait)", 0.6, 0.7),
        ("barrier (move)", 0.7, 0.8),
        ("step 1", 1.0, 1.2),
        ("data", 1.0, 1.2),
    ]
    assert not slices(found, "not recorded")


def test_nonsense_is_survived() -> None:
    chance = random.Random(5)
    for _ in range(10):
        words = words_of(chance.randbytes(RECORDING_BYTES))
        check_trace(
            list(
                events_of(0, operations_of(words, words), notes_of(words, words), groups_of(words))
            )
        )
    for number, times in enumerate([(float("inf"), None, None), (1.0, -5.0, 0.5), (1.0, 9e9, 1.5)]):
        held = [operation(0, "barrier", 1.0, 1.0, 1.1), operation(1 + number, "send", *times)]
        noted = notes(("step", float("nan"), 1.0), ("end", "x", 1.0), ("step", 1, float("nan")))
        trace(held, noted, joined=())


def test_random_programs_make_whole_traces() -> None:
    chance = random.Random(8)
    for _ in range(30):
        time, held, told = 1.0, [], []
        for number in range(60):
            time += chance.random()
            took = chance.choice([0.0, 1e-6, chance.random() * 3])
            came = chance.choice([None, time + took * chance.random()])
            left = chance.choice([time + took] * 9 + [None])
            name = chance.choice(["all_reduce", "wait", "send", "batch"])
            background = chance.random() < 0.3
            held.append(operation(number, name, time, came, left, in_background=background, root=1))
            kind = chance.choice(["step", "begin", "end"])
            what: Any = number if kind == "step" else chance.choice("abc")
            told.append(
                (kind, what, time + chance.choice([-1e-6, 0.0, 1e-6]), chance.choice([0, 0, 1]))
            )
        since = chance.choice([-float("inf"), time / 2])
        trace(held, notes(*told), since=since, until=time, joined=())


# ---- files


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_file_is_whole_json_whatever_names_are(tmp_path: Path, name: str) -> None:
    noted = notes(("begin", '</script>"\x1b[2J\\', 1.0), ("end", '</script>"\x1b[2J\\', 2.0))
    events = trace([], noted)
    size = write_trace(str(tmp_path / name), events, {"ranks": [0], "bound": 0.5})
    assert size == (tmp_path / name).stat().st_size
    read, about = read_trace_file(tmp_path / name)
    assert read == json.loads(json.dumps(events))
    assert about == {"ranks": [0], "bound": 0.5}
    assert os.listdir(tmp_path) == [name]


def test_what_cannot_be_written_leaves_the_former_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("former")

    def fails() -> Iterator[Event]:
        yield {"ph": "i"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_trace(str(path), fails(), {})
    assert path.read_text() == "former"
    assert os.listdir(tmp_path) == ["trace.json"]
    with pytest.raises(
        TraceNotWritten, match=r"/dev/full cannot be written: No space left on device"
    ):
        write_trace("/dev/full", [{"ph": "i"}], {})
    with pytest.raises(TraceNotWritten, match=r"none/trace.json cannot be written: No such file"):
        write_trace(str(tmp_path / "none/trace.json"), [], {})


def test_times_of_until_are_found(tmp_path: Path) -> None:
    held: list[Operation] = [operation(0, "barrier", 1.0, 1.0, 3.0), operation(1, "barrier", 2.0)]
    assert slices(trace(held, []))[-1] == ("barrier", 2.0, 3.0)
