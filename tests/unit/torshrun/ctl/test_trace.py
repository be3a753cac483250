"""Records of several nodes become one trace, on one clock."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.traces import Event, check_trace, notes, operation, read_trace_file, slices
from support.written import written_file

from torsh_runtime.errors import ConfigError
from torsh_runtime.events import Event as JobEvent
from torsh_runtime.monitoring.layout import Operation, file_beside
from torsh_runtime.monitoring.notes import Group, Note
from torshrun.ctl.places import Asking, Unfit
from torshrun.ctl.trace.joined import Joined
from torshrun.ctl.trace.nodes import Node, Worker, nodes_of_dumps
from torshrun.ctl.trace.others import Others
from torshrun.ctl.trace.run import Wanted, parse_steps, run
from torshrun.health.alignment import aligned
from torshrun.health.collecting import Collector, Steps
from torshrun.health.recordings import Dump, Record


def _no_run(_: str) -> Any:
    raise AssertionError("no run is asked for")


NO_RUN = Asking(lambda _: False, _no_run, 1.0)


def collectives(chance: random.Random, count: int) -> list[list[Operation]]:
    """What two ranks note of so many all_reduces, by one clock: messages take 10 to 60 µs."""
    ranks: list[list[Operation]] = [[], []]
    free = [100.0, 100.0]
    for number in range(count):
        entered = [time + chance.uniform(1e-4, 1e-3) for time in free]
        for rank in (0, 1):
            left = max(entered[rank], entered[1 - rank] + chance.uniform(1e-5, 6e-5))
            ranks[rank].append(operation(number, "all_reduce", entered[rank], None, left))
            free[rank] = left
    return ranks


def moved(held: Sequence[Operation], by: float) -> list[Operation]:
    return [each._replace(entered=each.entered + by, left=(each.left or 0) + by) for each in held]


def node(number: int, held: Sequence[Operation], noted: Sequence[Note] = (), **facts: Any) -> Node:
    """Of one rank of that number."""
    known: dict[str, Any] = {"host": f"n{number}", "round": 0, "at": 1000.0, "zero": 0.0, **facts}
    worker = Worker(number, lambda: held, lambda: noted, [Group(0, 2, "dp", "0-1")])
    return Node(workers=[worker], node=number, **known)


def events(joined: Joined) -> list[Event]:
    """Checked."""
    found = list(joined.events())
    check_trace(found)
    return found


def test_no_effect_is_before_its_cause_and_the_names_say_how_clocks_are_known() -> None:
    ranks = collectives(random.Random(4), 100)
    dumps = [
        Dump("r", 0, rank, f"n{rank}", 1000.0, {rank: Record(moved(ranks[rank], apart - 1000))})
        for rank, apart in ((0, 0.0), (1, 77.0))
    ]
    found = events(Joined(nodes_of_dumps(aligned(dumps)), None, None))
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert [name.partition("±")[0] for name in names] == [
        "rank 0 (node n0, clock ",
        "rank 1 (node n1, clock ",
    ]
    entered: dict[int, float] = {}
    left: dict[int, float] = {}
    for event in (event for event in found if event["ph"] == "X"):
        number, end = event["args"]["number"], event["ts"] + event["dur"]
        entered[number] = max(entered.get(number, 0.0), event["ts"])
        left[number] = min(left.get(number, end), end)
    assert len(entered) == 100
    assert all(left[number] >= entered[number] - 0.002 for number in entered)


def test_measured_clocks_count_and_one_host_has_one_clock() -> None:
    held = [operation(0, "barrier", 1.0, None, 2.0)]
    measured = [node(0, held, offset=5.0, bound=1e-5), node(1, held, offset=7.0, bound=2e-3)]
    found = events(Joined(measured, None, None))
    assert [begin for _, begin, _ in slices(found)] == [0.0, 2.0]
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == [
        "rank 0 (node n0, clock ± 10 µs)",
        "rank 1 (node n1, clock ± 2.0 ms)",
    ]
    found = events(Joined([measured[0], node(1, held)], None, None))
    names = [e["args"]["name"] for e in found if e["name"] == "process_name"]
    assert names[1] == "rank 1 (node n1, clock unknown)"
    same = [node(0, held, host="n"), node(1, held, host="n")]
    found = events(Joined(same, None, None))
    assert [begin for _, begin, _ in slices(found)] == [0.0, 0.0]


def test_messages_between_nodes_are_arrows() -> None:
    ranks = collectives(random.Random(5), 20)
    sent = operation(20, "send", 200.0, None, 200.5, root=1)
    lost = operation(21, "send", 201.0, None, 201.5, root=1, sequence=21)
    got = operation(20, "recv", 200.1, None, 200.7, root=0)
    nodes = [
        node(0, [*ranks[0], sent, lost], offset=0.0),
        node(1, moved([*ranks[1], got], 9.0), offset=-9.0),
    ]
    arrows = [(e["ph"], e["pid"]) for e in events(Joined(nodes, None, None)) if e["ph"] in "sf"]
    assert arrows == [("s", 1), ("f", 2)]


def test_only_the_steps_that_are_wanted() -> None:
    noted = notes(*(("step", number, 10.0 + number) for number in range(10)))
    held = [operation(n, "barrier", 10.2 + n, 10.3 + n, 10.4 + n) for n in range(10)]
    joined = Joined([node(0, held, noted)], Steps(4, 5), None)
    shown = [name for name, *_ in slices(events(joined)) if name.startswith("step")]
    assert shown == ["step 4", "step 5"]
    assert joined.count == 2
    assert Joined([node(0, held, noted)], Steps(44, 45), None).count == 0
    last = Joined([node(0, held, noted, at=20.0)], None, 2.5)
    assert [name for name, *_ in slices(events(last))][:3] == ["step 7", "step 8", "barrier (wait)"]


def test_rounds_of_different_leaders_are_on_the_nodes_own_clocks() -> None:
    held = [operation(0, "barrier", 1.0, 1.5, 2.0)]
    nodes = [
        node(0, held, offset=400.0),
        node(1, held, offset=500.0),
        node(0, moved(held, 10.0), round=1, offset=0.0),
        node(1, moved(held, 10.0), round=1, offset=1.0),
    ]
    found = events(Joined(nodes, None, None))
    assert [begin for name, begin, _ in slices(found) if "wait" in name] == [0.0, 1.0, 10.0, 11.0]


def test_dumps_are_placed_by_the_moment_when_they_were_kept() -> None:
    records = {rank: Record([operation(0, "barrier", -1.0, -0.5, -0.25)]) for rank in (0, 1)}
    dumps = [
        Dump("run", 0, 0, "n", 50.0, {0: records[0]}, wall=5.0),
        Dump("run", 1, 0, "n", 60.0, {0: records[0], 1: Record()}),
    ]
    joined = Joined(nodes_of_dumps(dumps), None, None)
    found = events(joined)
    assert [begin for _, begin, _ in slices(found)] == [0.0, 0.5, 10.0, 10.5]
    assert [e["ts"] for e in found if e["name"] == "attempt 0 had ended"] == [1e6]
    assert list(joined.complaints()) == [
        "rank 1 has recorded nothing: TORSH_RECORDER=off, or no group or step yet"
    ]


# ---- files of others


def profile(path: Path, **facts: Any) -> str:
    """As torch.profiler writes one, of a second at 5 s of the node's clock."""
    made = [
        {"ph": "M", "name": "thread_name", "pid": 44, "tid": 45, "args": {"name": "thread 45"}},
        {
            "ph": "X",
            "name": "aten::mm",
            "cat": "cpu_op",
            "pid": 44,
            "tid": 45,
            "ts": 5e6,
            "dur": 1e6,
        },
        {"ph": "s", "name": "ac2g", "cat": "ac2g", "id": 7, "pid": 44, "tid": 45, "ts": 5e6},
        {"ph": "f", "name": "ac2g", "cat": "ac2g", "id": 7, "pid": 44, "tid": 45, "ts": 5.5e6},
        {"ph": "s", "name": "ac2g", "cat": "ac2g", "id": 8, "pid": 44, "tid": 45, "ts": 5.1e6},
        {"ph": "X", "name": "before", "pid": 44, "tid": 45, "ts": 1.0, "dur": 1.0},
        {"ph": "X", "name": "Profiler", "pid": "Spans", "tid": "Spans", "ts": 5e6, "dur": 1.0},
        {"ph": "X", "name": "odd", "pid": 44, "tid": 45, "ts": "x"},
        "nonsense",
    ]
    base = 100 * 10**9
    path.write_text(json.dumps({"traceEvents": made, "baseTimeNanoseconds": base, **facts}))
    return str(path)


@pytest.fixture
def joined() -> Joined:
    held = [operation(0, "barrier", 4.0, 5.0, 6.0)]
    first, second = node(0, held, wall=100.0), node(1, held, wall=100.0)
    return Joined([first, second], None, None)


def test_profiles_are_on_the_ranks_clock(joined: Joined, tmp_path: Path) -> None:
    others = Others(joined)
    others.add(profile(tmp_path / "a", distributedInfo={"rank": 1}))
    others.add("0=" + profile(tmp_path / "b"))
    found = list(joined.events(others.streams))
    check_trace(found)
    for rank in (0, 1):
        own = [event for event in found if event["pid"] == rank + 1]
        assert slices(own, "torch: thread 45") == [("aten::mm", 1.0, 2.0)]
        assert [event["ph"] for event in own if event["name"] == "ac2g"] == ["s", "f"]
    assert len({event["id"] for event in found if event["ph"] == "s"}) == 2
    assert others.complaints[0].endswith("a: 1 of its 5 events are outside of this trace's time")


def test_whose_profile_it_is_has_to_be_known(joined: Joined, tmp_path: Path) -> None:
    path = profile(tmp_path / "a")
    for what, why in {
        path: "does not say which rank it belongs to",
        f"9={path}": "belongs to rank 9, which has no records",
        str(tmp_path / "none"): "No such file",
        str(tmp_path): "Is a directory",
    }.items():
        with pytest.raises(Unfit, match=why):
            Others(joined).add(what)
    (tmp_path / "b").write_text('{"traceEvents": 3}')
    with pytest.raises(Unfit, match=r"neither a trace of torch.profiler nor"):
        Others(joined).add(str(tmp_path / "b"))
    with_pid = Worker(0, list, list, [], pid=44)
    known = Joined([Node("n", 0, 9.0, 0.0, [with_pid], wall=100.0)], None, None)
    Others(known).add(path)
    with pytest.raises(Unfit, match="wall clock of rank 0's node is not known"):
        Others(Joined([Node("n", 0, 9.0, 0.0, [with_pid])], None, None)).add(path)


def test_events_of_the_job_are_marks(joined: Joined, tmp_path: Path) -> None:
    facts = {"rank": 1, "summary": "it <failed>\x1b[2J"}
    failed = JobEvent(
        name="worker_failed", time=105.5, run_id="r", node_rank=1, round=0, facts=facts
    )
    early = JobEvent(name="job_started", time=1.0, run_id="r", node_rank=0, round=0)
    (tmp_path / "e").write_bytes(early.to_json() + b"nonsense\n" + failed.to_json())
    others = Others(joined)
    others.add(str(tmp_path / "e"))
    (told,) = [event for event in joined.events(others.streams) if event["ph"] == "i"]
    assert (told["pid"], told["ts"], told["name"]) == (
        2,
        1.5e6,
        f"worker failed: {facts['summary']}",
    )


# ---- the command


def test_traces_of_nodes_are_joined_from_files(tmp_path: Path) -> None:
    for place in (0, 1):
        (worker,) = written_file(tmp_path / f"pages{place}", 1)
        collector = Collector(file_beside(str(tmp_path / f"pages{place}")))
        worker.do(5)
        facts = {"ranks": {0: place}, "host": f"n{place}", "node": place, "began": 0.0, "at": 9.0}
        (tmp_path / f"n{place}.trace").write_bytes(collector.finish(facts))
        collector.close()
    said: list[str] = []
    output = str(tmp_path / "trace.json")
    places = [str(tmp_path / f"n{place}.trace") for place in (0, 1)]
    assert run(Wanted(places, None, None, output, ()), NO_RUN, said.append) == 0
    assert "10 operations of ranks 0-1" in said[-1]
    found, about = read_trace_file(Path(output))
    assert len([event for event in found if event["ph"] == "X"]) == 20
    assert about["ranks"] == [0, 1]


def test_what_is_no_place_of_records_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"torshtrcnonsense")
    for name, why in {"pipe": "neither", "file": "neither", "none": "No such file"}.items():
        wanted = Wanted([str(tmp_path / name)], None, None, str(tmp_path / "out"), ())
        with pytest.raises(Unfit, match=why):
            run(wanted, NO_RUN, print)
    (tmp_path / "packed").write_bytes(b"\x1f\x8bnonsense")
    with pytest.raises(Unfit, match=r"cannot read .*packed"):
        Others(Joined([], None, None)).add(str(tmp_path / "packed"))


def test_steps_are_two_numbers_or_one() -> None:
    assert (parse_steps("3:9"), parse_steps("4")) == (Steps(3, 9), Steps(4, 4))
    for text in ("", "a", "9:3", "1:", ":2", "-1", "1:2:3"):
        with pytest.raises(ConfigError, match=r"--steps .*must be A:B"):
            parse_steps(text)
