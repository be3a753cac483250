"""torshctl top: what its picture tells, in terminals of all sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.operations import note, operation

from torsh_runtime.errors import StoreError
from torsh_runtime.monitoring.layout import Operation
from torsh_runtime.monitoring.notes import Group, Note
from torshrun.ctl.recorded import Recorded
from torshrun.ctl.top import Jobs, State, press
from torshrun.ctl.top_lines import Shape, lines
from torshrun.ctl.top_view import Sample, Usage, view
from torshrun.health.recordings import Dump, Record

WIDE = Shape(120, 24)
GROUPS = [Group(0, 4, "dp", "0-3"), Group(7, 2, "pp", "1,3")]


def record(held: Sequence[Operation], notes: Sequence[Note] = ()) -> Record:
    return Record(held, notes, GROUPS)


def job(records: dict[int, Record], **facts: object) -> Sample:
    dump = Dump("digits", 2, 0, "node1", 100.0, records)
    return Sample(Recorded("pid 7: torshrun train.py", [dump]))._replace(**facts)  # type: ignore[arg-type]


def late(rank: int, count: int = 4) -> Sample:
    """A job whose ranks wait for this one, which is in a section."""
    before = operation(0, -20.0, -19.0, -18.0)
    notes = [note("step", -9.0, value=11), note("step", -4.0, value=12)]
    waits = record([before, operation(1, -3.2)], notes)
    records = {each: waits for each in range(count) if each != rank}
    loading = [*notes, note("begin", -4.0, "data"), note("begin", -3.5, "read")]
    return job({**records, rank: record([before], loading)})


def picture(sample: Sample, shape: Shape = WIDE, at: float = 0.0) -> list[str]:
    return lines(view(sample, at, 5.0), shape)


def test_who_waits_for_whom() -> None:
    usage = {0: Usage(1.04, 3 << 30, "R"), 3: Usage(0.01, 1200 << 20, "S")}
    found = picture(late(3)._replace(usage=usage))
    assert found.pop(3).startswith("rank 3 never entered all_reduce(float32[8], SUM) #1 ")
    assert found == [
        "pid 7: torshrun train.py",
        "round 2, 4 ranks of node1, step 12, 0.2 steps/s",
        "last 5.0 s: own work 52 %, moving bytes 0 %, waiting 48 % (48 % for rank 3)",
        "RANK    STEP OWN# MOVE- WAIT.   B/S  CPU%   MEM  SINCE  DOES",
        "   0      12 ####......  64 %     0   104    3G  3.2 s  waits for rank 3 in all_reduce #1 "
        "of dp",
        "   1      12 ####......  64 %     0     -     -  3.2 s  waits for rank 3 in all_reduce #1 "
        "of dp",
        "   2      12 ####......  64 %     0     -     -  3.2 s  waits for rank 3 in all_reduce #1 "
        "of dp",
        "   3      12 ##########   0 %     0     1 1.17G  3.5 s  in data/read",
    ]


def test_ranks_that_do_the_same_are_one_line_where_there_is_no_room() -> None:
    found = picture(late(3, 64), Shape(100, 12, keys="q quit"))
    assert [line[:13] for line in found[5:7]] == ["0-2,4-63     ", "       3     "]
    assert "63 ranks: waits for rank 3 in all_red" in found[5]
    assert (len(found), found[-1]) == (12, "q quit")


def test_what_does_not_fit_is_counted() -> None:
    sections = {rank: record([], [note("begin", -1.0, f"part {rank}")]) for rank in range(50)}
    found = picture(job(sections), Shape(80, 14, keys="q quit"))
    assert found[-2] == "… 43 more ranks, in 43 lines"
    assert len(found) == 14


@pytest.mark.parametrize("columns", [0, 1, 10, 37, 80, 300])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 24, 100])
def test_no_terminal_is_too_small(columns: int, rows: int) -> None:
    for sample in (late(1), late(1, 64), job({})):
        found = picture(sample, Shape(columns, rows, keys="q quit"))
        assert len(found) <= rows
        assert all(len(line) <= columns for line in found)


def test_names_are_fit_for_a_terminal() -> None:
    notes = [note("scalar", -1.0, "lo\x1b[31mss", 0.5), note("begin", -1.0, "a\x1b]0;b\x07\nc")]
    sample = job({0: Record([], notes, [Group(0, 1, "\x1b[2J", "x")])})
    sample = sample._replace(recorded=sample.recorded._replace(name="a\x1b[2J\rb"))
    text = "\n".join(picture(sample))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "loss 0.5" in text
    assert "in a c" in text


def test_wide_characters_take_two_columns() -> None:
    sample = job({})
    sample = sample._replace(recorded=sample.recorded._replace(name="訓練" * 30))
    assert picture(sample, Shape(11, 5))[0] == "訓練訓練訓…"


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b" not in "".join(picture(late(3)))
    assert "\x1b[31m" in "".join(picture(late(3), WIDE._replace(color=True)))


def test_a_job_as_it_was_before_its_end() -> None:
    ended = late(3)._replace(has_ended=True)
    assert picture(ended)[0] == "ended  pid 7: torshrun train.py"
    before = picture(ended, at=-3.4)
    assert before[0] == "3.4 s before the end  pid 7: torshrun train.py"
    assert [line[-12:] for line in before[4:]] == [
        *["s  own work"[-12:].rjust(12)] * 3,
        "in data/read",
    ]
    assert all("nothing is recorded" in line for line in picture(ended, at=-60.0)[4:])


def test_messages_and_waits_and_stopped_processes() -> None:
    recv = operation(3, -2.0, name="recv", group=7, root=0)
    sent = operation(3, -2.5, in_background=True)
    wait = operation(4, -2.0, name="wait", awaited=3)
    stopped = record([operation(0, -20.0, -19.0, -18.0)])
    sample = job(
        {1: record([recv]), 3: record([sent, wait]), 4: stopped}, usage={4: Usage(state="T")}
    )
    found = picture(sample)[-3:]
    assert "waits for rank 1 in recv #3 of pp" in found[0]
    assert "in all_reduce #3 of dp" in found[1]
    assert "is stopped" in found[2]
    reads = job({0: stopped, 1: record([])}, usage=dict.fromkeys((0, 1), Usage(waits="stdin")))
    first, second = picture(reads)[-2:]
    assert first.endswith("own work; waits for stdin")
    assert second.endswith("nothing is recorded; waits for stdin")


def test_nodes_are_compared_where_their_clocks_are_known() -> None:
    early, last = operation(1, -4.0, -1.0, -0.9), operation(1, -2.0, -1.0, -0.9)
    dumps = [
        Dump("digits", 0, 0, "a", 100.0, {0: record([early])}, offset=0.0),
        Dump("digits", 0, 1, "b", 7.0, {1: record([last])}, offset=93.0),
    ]
    sample = Sample(Recorded("run digits", dumps))
    assert view(sample, 0.0, 5.0).awaited == {1: pytest.approx(0.3)}
    apart = [dumps[0], dumps[1]._replace(offset=None)]
    assert view(Sample(Recorded("run digits", apart)), 0.0, 5.0).awaited == {}


def test_a_run_is_asked_again_until_nobody_answers() -> None:
    known = [late(3).recorded]

    def ask() -> list[Recorded]:
        if not known:
            raise StoreError("the store is gone")
        return [known[0]]

    jobs = Jobs("digits", ask)
    known[0] = late(2).recorded
    jobs.look()
    assert view(jobs.samples[0], 0.0, 5.0).awaited.keys() == {2}
    assert jobs.is_live
    known.clear()
    jobs.look()
    assert (jobs.samples[0].has_ended, jobs.is_live) == (True, False)
    with pytest.raises(StoreError):
        Jobs("digits", ask)


def test_nodes_that_do_not_answer_are_named() -> None:
    sample = late(3)
    silent = ("node2 did not answer\x1b[2J", "node3 did not answer")
    sample = sample._replace(recorded=sample.recorded._replace(silent=silent))
    assert picture(sample)[3] == "node2 did not answer (and 1 more)"


def test_orders() -> None:
    for sort, first in (("rank", "0"), ("waiting", "0"), ("own work", "3"), ("since", "3")):
        assert picture(late(3), WIDE._replace(sort=sort))[5].split()[0] == first


def test_keys() -> None:
    state = State()
    for key in ("s", "x", "left", "left", "right", "n"):
        state = press(state, key)
    assert state == State(job=1, sort="waiting", at=-1.0, is_paused=True)
    assert press(press(state, "right"), "right").at == 0.0
    assert not press(state, "p").is_paused
    assert press(state, "q").quits
