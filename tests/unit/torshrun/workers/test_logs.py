"""The pump, through real pipes."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.consoles import Console, Reader, fill
from support.processes import soon

from torsh_runtime.contract import WorkerEnv
from torshrun.config.job import OutputConfig, StreamRule, Streams
from torshrun.workers.logs import mover
from torshrun.workers.logs.files import LogFile
from torshrun.workers.logs.pump import LogPump
from torshrun.workers.logs.stream import TAIL_BYTES

BOTH = StreamRule(everyone=Streams.BOTH)
Open = Callable[..., Console]


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Open]:
    made: list[Console] = []

    def open_console(one: bool = False, **output: object) -> Console:
        made.append(Console(OutputConfig(**output), tmp_path, one))  # type: ignore[arg-type]
        return made[-1]

    yield open_console
    for each in made:
        each.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfinished lines are held back for as long as the test takes."""
    monkeypatch.setattr(mover, "PARTIAL_SECONDS", 60.0)


def holds_back(each: Console, rank: int = 0) -> bool:
    printer = each.streams[rank][0].printer
    return printer is not None and printer.partial


# ---- lines


def test_lines_are_prefixed(console: Open) -> None:
    each = console()
    out, err = each.worker(3)
    out(b"one\ntwo\n\xff\xfe\n")
    err(b"oops\n")
    assert each.finish() == (b"[3] one\n[3] two\n[3] \xff\xfe\n", b"[3] oops\n")


@pytest.mark.usefixtures("patient")
def test_a_line_in_pieces_is_not_torn_by_another_rank(console: Open) -> None:
    each = console()
    (first, _), (second, _) = each.worker(0), each.worker(1)
    first(b"begin ")
    assert soon(lambda: holds_back(each))
    second(b"other\n")
    assert each.read_out() == b"[1] other\n"
    first(b"end\n")
    assert each.finish()[0] == b"[0] begin end\n"


def test_an_unfinished_line_appears_after_a_while_and_goes_on(console: Open) -> None:
    each = console()
    out, _ = each.worker(0)
    out(b"name? ")
    assert each.read_out() == b"[0] name? "
    out(b"yes\nnext\n")
    assert each.finish()[0] == b"yes\n[0] next\n"


def test_another_rank_begins_a_new_line_behind_an_unfinished_one(console: Open) -> None:
    each = console()
    (first, _), (second, _) = each.worker(0), each.worker(1)
    first(b"name? ")
    assert each.read_out() == b"[0] name? "
    second(b"hello\n")
    assert each.read_out() == b"\n[1] hello\n"
    first(b"yes\n")
    assert each.finish()[0] == b"[0] yes\n"


def test_a_line_beyond_64_kib_is_passed_on(console: Open) -> None:
    each = console()
    out, _ = each.worker(0)
    reader = Reader(each.out)
    for _ in range(20):
        out(b"x" * 10_000)
    assert soon(lambda: len(reader.data) > 65536)
    out(b"\n")
    each.end()
    assert reader.join() == b"[0] " + b"x" * 200_000 + b"\n"


def test_carriage_returns_pass_at_once_and_each_bar_has_its_prefix(console: Open) -> None:
    each = console()
    out, _ = each.worker(0)
    out(b"1%\r")
    assert each.read_out() == b"[0] 1%\r"
    out(b"2%\r3%\n")
    assert each.finish()[0] == b"[0] 2%\r[0] 3%\n"


def test_a_return_and_newline_in_two_pieces_end_one_line(console: Open) -> None:
    each = console()
    out, _ = each.worker(0)
    out(b"done\r")
    assert each.read_out() == b"[0] done\r"
    out(b"\nnext\n")
    assert each.finish()[0] == b"\n[0] next\n"


def test_the_other_half_of_a_line_end_is_dropped_behind_anothers_line(console: Open) -> None:
    each = console()
    (first, _), (second, _) = each.worker(0), each.worker(1)
    first(b"done\r")
    assert each.read_out() == b"[0] done\r"
    second(b"other\n")
    assert each.read_out() == b"[1] other\n"
    first(b"\nnext\n")
    assert each.finish()[0] == b"[0] next\n"


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("one", [False, True])
def test_many_writers_tear_nothing(console: Open, one: bool) -> None:
    each = console(one)
    reader = Reader(each.out)
    if one:  # what begins on a worker's stdout may end on its stderr
        writers = [each.worker(rank) for rank in range(6)]
    else:
        writers = [(write, write) for rank in range(3) for write in each.worker(rank)]
    ranks = range(6) if one else (0, 0, 1, 1, 2, 2)
    others = None if one else Reader(each.err)

    def line(index: int, number: int) -> bytes:
        return b"%d-%d-%s" % (index, number, b"y" * (number % 90))

    def work(index: int) -> None:
        for number in range(1000):
            data = line(index, number) + b"\n"
            begin, end = writers[index]
            begin(data[: number % len(data)])
            end(data[number % len(data) :])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for number in range(50):
        each.pump.say(f"says {number}")
        each.pump.write(b"writes %d\n" % number)
    for thread in threads:
        thread.join()
    each.end()
    lines = (reader.join() + (others.join() if others else b"")).splitlines()
    for index in range(6):
        prefix = b"[%d] " % ranks[index]
        mine = [text for text in lines if text.startswith(prefix + b"%d-" % index)]
        assert mine == [prefix + line(index, number) for number in range(1000)]
    for number in range(50):
        assert lines.count(b"says %d" % number) == lines.count(b"writes %d" % number) == 1
    assert len(lines) == 6 * 1000 + 2 * 50


def test_what_the_agent_says_begins_a_new_line(console: Open) -> None:
    each = console()
    out, err = each.worker(0)
    out(b"partial")
    err(b"partial")
    assert each.read_out() == each.read_err() == b"[0] partial"
    each.pump.say("torshrun: hello \ud800")
    each.pump.write(b'{"event": 1}\n')
    assert each.finish() == (b'\n{"event": 1}\n', b"\ntorshrun: hello \\ud800\n")


# ---- who is shown, what is kept


def test_redirected_streams_go_to_files_only(console: Open) -> None:
    each = console(redirects=BOTH, tee=StreamRule(by_local_rank={1: Streams.STDOUT}))
    for rank in range(2):
        out, err = each.worker(rank)
        out(b"out\r\xff")
        err(b"err\n")
    assert each.finish() == (b"[1] out\r[1] \xff", b"")
    for rank in range(2):
        assert each.kept(f"{rank}/stdout.log") == b"out\r\xff"
        assert each.kept(f"{rank}/stderr.log") == b"err\n"
        assert each.streams[rank][1].tail == b"err\n"


def test_a_log_directory_alone_keeps_what_is_shown(console: Open) -> None:
    each = console(log_dir="anywhere")
    each.worker(0)[0](b"a\n")
    assert each.finish() == (b"[0] a\n", b"")
    assert (each.kept("0/stdout.log"), each.kept("0/stderr.log")) == (b"a\n", b"")


def test_without_rules_nothing_is_kept(console: Open, tmp_path: Path) -> None:
    each = console()
    each.worker(0)[0](b"a\n")
    each.finish()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_ranks_that_are_not_shown_have_tails_files_and_counts(console: Open) -> None:
    each = console(ranks_filter=frozenset({1}), tee=BOTH)
    for rank in range(2):
        each.worker(rank)[0](b"out\n")
    assert each.finish() == (b"[1] out\n", b"")
    assert each.kept("0/stdout.log") == b"out\n"
    assert each.streams[0][1].tail == b""
    assert [out.received for out, _ in each.streams] == [4, 4]
    assert each.pump.received == 8


def test_filtered_lines_of_all_ranks_are_kept_together(console: Open) -> None:
    each = console(
        duplicate_stdout_filters=("loss",),
        duplicate_stderr_filters=("warn", "err"),
        ranks_filter=frozenset({0}),
        log_rotate=0,
    )
    for rank in range(2):
        out, err = each.worker(rank)
        out(b"hello\nloss 1\n")
        err(b"warn\nbye\nerror")
    each.worker(0, attempt=1)[0](b"loss 2\n")
    each.finish()
    out_lines = each.kept("filtered_stdout.log").splitlines()
    assert sorted(out_lines) == [b"[0] loss 1", b"[1] loss 1"]
    err_lines = each.kept("filtered_stderr.log").splitlines()
    assert sorted(err_lines) == [b"[0] error", b"[0] warn", b"[1] error", b"[1] warn"]
    again = each.folder / "attempt_1" / "filtered_stdout.log"
    assert again.read_bytes() == b"[0] loss 2\n"


def test_stderr_alone_can_be_filtered_where_both_go_to_one_place(console: Open) -> None:
    each = console(one=True, duplicate_stderr_filters=("loss",))
    out, err = each.worker(0)
    out(b"loss out\n")
    err(b"loss err\n")
    each.finish()
    assert each.kept("filtered_stderr.log") == b"[0] loss err\n"


def test_files_are_rotated(console: Open) -> None:
    each = console(redirects=BOTH, log_rotate=1000)
    out, _ = each.worker(0)
    for _ in range(30):
        out(b"x" * 99 + b"\n")
    each.finish()
    assert [len(each.kept(f"0/stdout.log{end}")) for end in ("", ".1", ".2", ".3")] == [
        0,
        1000,
        1000,
        1000,
    ]


def test_times_stand_behind_prefixes_and_at_the_start_in_files(console: Open) -> None:
    import re

    each = console(log_timestamps=True, log_dir="anywhere", duplicate_stdout_filters=("a",))
    each.worker(0)[0](b"a\nb\xff\n")
    shown, _ = each.finish()
    time = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
    assert re.fullmatch(rb"\[0\] %ba\n\[0\] %bb\xff\n" % (time, time), shown)
    assert re.fullmatch(rb"%ba\n%bb\xff\n" % (time, time), each.kept("0/stdout.log"))
    assert re.fullmatch(rb"%b\[0\] a\n" % time, each.kept("filtered_stdout.log"))


def test_prefixes_in_colour(console: Open) -> None:
    each = console(
        color="always", log_line_prefix_template="${role_name}/${rank}: ", log_dir="anywhere"
    )
    each.worker(0)[0](b"a\nb\n")
    head = b"\x1b[38;5;31mdefault/0: \x1b[0m"
    assert each.finish()[0] == head + b"a\n" + head + b"b\n"
    assert each.kept("0/stdout.log") == b"a\nb\n"


def test_a_pipe_shows_no_status(console: Open) -> None:
    each = console()
    assert not each.pump.status_width
    each.pump.set_status("busy")
    each.pump.resize()
    assert each.finish() == (b"", b"")


def test_a_file_that_cannot_be_opened_leaves_nothing_open(console: Open) -> None:
    each = console(tee=BOTH)
    (each.folder / "attempt_0" / "0" / "stderr.log").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        each.worker(0)  # the fixture for all tests looks for descriptors


def test_a_file_that_cannot_be_written_is_given_up(console: Open) -> None:
    each = console(log_dir="anywhere")
    out, _ = each.worker(0)
    (file,) = (tap for tap in each.streams[0][0].taps if isinstance(tap, LogFile))
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file._fd)
    out(b"a\n")
    assert each.read_out() == b"[0] a\n"
    out(b"b\n")
    shown, said = each.finish()
    assert shown == b"[0] b\n"
    assert said.count(b"torshrun: error: cannot write") == 1
    assert b"stdout.log (No space left on device); the rest is dropped\n" in said


# ---- tails, ends, and readers who stall or leave


def test_the_tail_is_the_end(console: Open) -> None:
    each = console()
    _, err = each.worker(0)
    reader = Reader(each.err)
    for number in range(9000):
        err(b"line %d\n" % number)
    done = threading.Event()
    each.pump.drain(each.streams[0], done.set)
    assert done.wait(5)
    tail = each.streams[0][1].tail
    assert len(tail) == TAIL_BYTES
    assert tail.endswith(b"line 8998\nline 8999\n")
    each.end()
    reader.join()


def test_draining_does_not_wait_for_writers_that_live_on(console: Open) -> None:
    each = console()
    out, _ = each.worker(0)
    out(b"last words")
    done = threading.Event()
    each.pump.drain(each.streams[0], done.set)
    assert done.wait(5)
    assert each.read_out() == b"[0] last words"


def test_draining_does_not_wait_for_an_outsider_that_never_stops(console: Open) -> None:
    slow = tuple(f"needle {number}" for number in range(300))
    each = console(ranks_filter=frozenset(), duplicate_stdout_filters=slow)
    each.worker(0)
    with subprocess.Popen(["yes"], stdout=each.streams[0][0].source.end) as screamer:
        done = threading.Event()
        each.pump.drain(each.streams[0], done.set)
        drained = done.wait(10)
        screamer.kill()
    assert drained


def test_the_time_of_a_stall_does_not_count_for_unfinished_lines(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mover, "PARTIAL_SECONDS", 1.0)
    each = console()
    (first, _), _ = each.worker(0), each.worker(1)
    first(b"begin ")
    assert soon(lambda: holds_back(each))
    total = fill(each.streams[1][0].source.end, b"w" * 999 + b"\n")
    time.sleep(1.2)
    reader = Reader(each.out)
    assert soon(lambda: len(reader.data) >= total)
    first(b"end\n")
    each.end()
    assert b"[0] begin end\n" in reader.join()


def test_workers_go_on_when_the_reader_is_gone_and_that_is_said_once(console: Open) -> None:
    each = console()
    os.close(each.out)
    each.out = os.open(os.devnull, os.O_RDONLY)
    out, _ = each.worker(0)
    for _ in range(100):  # far more than the pipe holds
        out(b"z" * 9999 + b"\n")
    said = each.finish()[1]
    assert said.count(b"on stdout (Broken pipe)") == said.count(b"\n") == 1
    assert each.pump.lost == {"stdout": "Broken pipe"}


def test_a_stalled_reader_of_stdout_stalls_workers_and_nothing_else(console: Open) -> None:
    each = console(
        tee=StreamRule(by_rank={1: Streams.BOTH}),
        redirects=StreamRule(by_rank={1: Streams.STDOUT}),
    )
    _, err = each.worker(0)
    line = b"w" * 999 + b"\n"
    total = fill(each.streams[0][0].source.end, line)
    assert total < 1_000_000  # bounded by the pipes and one chunk, not by memory
    moved = each.pump.moved
    each.pump.say("torshrun: still here")
    assert each.read_err() == b"torshrun: still here\n"
    err(b"stderr too\n")
    assert each.read_err() == b"[0] stderr too\n"
    assert each.streams[0][1].tail == b"stderr too\n"
    assert each.pump.moved > moved
    shown, said = each.finish()
    assert (shown.count(b"[0] www"), said) == (total // len(line), b"")


def test_a_stalled_reader_does_not_hold_back_what_only_files_keep(console: Open) -> None:
    each = console(redirects=StreamRule(by_rank={1: Streams.STDOUT}))
    each.worker(0)
    fill(each.streams[0][0].source.end, b"w" * 999 + b"\n")
    each.worker(1)[0](b"kept\n")
    assert soon(lambda: each.kept("1/stdout.log") == b"kept\n")


def test_a_stalled_reader_of_both_stalls_neither_say_nor_give_up(console: Open) -> None:
    each = console(one=True)
    each.worker(0)
    fill(each.streams[0][0].source.end, b"w" * 999 + b"\n")
    moved = each.pump.moved
    each.pump.say("torshrun: at the end")
    each.pump.give_up()
    assert each.pump.moved == moved
    each.pump.close()
    assert not each.pump.is_closed(0.05)
    assert each.finish()[0].splitlines().count(b"torshrun: at the end") == 1


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("data", [b"at once\n", b"at the very end"])
def test_what_cannot_be_written_is_complained_of(tmp_path: Path, data: bytes) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    reading, writing = os.pipe()
    pump = LogPump(OutputConfig(), None, full, writing, {})
    place = WorkerEnv(rank=0, world_size=1, local_rank=0, local_world_size=1)
    out, err = pump.open(place, str(tmp_path))
    os.write(out.source.end, data)
    os.close(out.source.end)
    os.close(err.source.end)
    pump.close()
    assert pump.is_closed(5)
    os.close(writing)  # so that silence is an end and not a wait
    assert pump.lost == {"stdout": "No space left on device"}
    said = os.read(reading, 1000)
    assert said == (
        b"torshrun: error: cannot write what workers say on stdout (No space left on device): "
        b"the rest of it is dropped, and the job goes on; SIGINT (Ctrl-C) ends it\n"
    )
    for fd in (full, reading):
        os.close(fd)
