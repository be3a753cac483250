"""Events on their way to files, FIFOs and stdout: whole, in order, and never in the job's way."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes import soon

from torsh_runtime.errors import ConfigError
from torsh_runtime.events import Event, faults
from torshrun.live import line_file
from torshrun.live.line_file import LineFile

STRANGER = 64999
"""Another user, who need not have a name."""


def an_event(number: int, text: str = "SIGUSR1") -> Event:
    facts = {"signal": text}
    return Event(name="notice", time=number, run_id="j", node_rank=0, round=number, facts=facts)


def rounds(data: str | bytes) -> list[int]:
    return [json.loads(line)["round"] for line in data.splitlines()]


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def open_lines(complaints: list[str]) -> Iterator[Callable[[Path | str], LineFile]]:
    """Opens sinks that are closed after the test."""
    with contextlib.ExitStack() as stack:

        def opened(path: Path | str) -> LineFile:
            sink = LineFile(str(path), complaints.append)
            stack.callback(sink.close)
            return sink

        yield opened


@contextlib.contextmanager
def biggest_file(size: int) -> Iterator[None]:
    """A disk that is full from there on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_lines_are_added_to_what_is_there(
    tmp_path: Path, open_lines: Callable[[Path], LineFile], complaints: list[str]
) -> None:
    path = tmp_path / "events"
    for start in (0, 50):
        sink = open_lines(path)
        for number in range(start, start + 50):
            sink.record(an_event(number))
        sink.close()
    assert rounds(path.read_bytes()) == list(range(100))
    assert complaints == []


def test_a_line_comes_without_waiting_for_the_next(
    tmp_path: Path, open_lines: Callable[[Path], LineFile]
) -> None:
    sink = open_lines(tmp_path / "events")
    sink.record(an_event(1))
    assert soon(lambda: (tmp_path / "events").read_bytes() == an_event(1).to_json())


def test_several_agents_share_a_file_without_tearing_lines(
    tmp_path: Path, open_lines: Callable[[Path], LineFile]
) -> None:
    path = tmp_path / "events"
    sinks = [open_lines(path) for _ in range(3)]
    for number in range(200):
        for sink in sinks:
            sink.record(an_event(number, "x" * 5000))
    for sink in sinks:
        sink.close()
    assert sorted(rounds(path.read_bytes())) == sorted([*range(200)] * 3)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("missing/events", "No such file"),
        (".", "Is a directory"),
        ("file/events", "Not a directory"),
        ("nul\0", "null"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_the_start(
    tmp_path: Path, place: str, why: str, open_lines: Callable[[str], LineFile]
) -> None:
    (tmp_path / "file").touch()
    path = f"{tmp_path}/{place}"
    with pytest.raises(ConfigError, match=why) as caught:
        open_lines(path)
    assert path in str(caught.value)


def test_a_new_file_is_for_its_owner_only(
    tmp_path: Path, open_lines: Callable[[Path], LineFile]
) -> None:
    before = os.umask(0)
    try:
        open_lines(tmp_path / "events").close()
    finally:
        os.umask(before)
    assert (tmp_path / "events").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's files")
@pytest.mark.parametrize("part", ["events", "folder", "link to a link", "file", "hard link"])
def test_another_users_traps_are_not_written_to(
    tmp_path: Path, part: str, open_lines: Callable[[Path], LineFile]
) -> None:
    mine, trap = tmp_path / "mine", tmp_path / "trap"
    mine.mkdir()
    (mine / "events").touch()
    path, why = trap, "another user's symbolic link"
    if part == "events":
        trap.symlink_to(mine / "events")
    elif part == "folder":
        trap.symlink_to(mine)
        path = trap / "events"
    elif part == "link to a link":
        trap.symlink_to("mine/events")
        path = tmp_path / "own"
        path.symlink_to(trap)
    elif part == "file":
        trap.touch()
        why = f"belongs to another user, of uid {STRANGER}"
    else:
        trap.hardlink_to(mine / "events")
        why = "hard links"
    if part != "hard link":
        os.chown(trap, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(ConfigError, match=why):
        open_lines(path)
    assert (mine / "events").read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_another_user_may_use_links_of_roots_and_ones_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    (tmp_path / "roots").symlink_to("home/../home/folder")
    code = (
        f"import os; os.chdir({str(home)!r}); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
        "os.mkdir('folder'); os.symlink('real', 'folder/events')\n"
    )
    run_lines(code, "folder/events", "../roots/real")
    assert (home / "folder/real").read_bytes() == b"folder/events\n../roots/real\n"


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_open_file_may_be_named(path: str) -> None:
    assert run_lines("", path) == f"{path}\n"


def run_lines(before: str, *paths: str) -> str:
    """Writes to each file its name, in a process of its own; what that has written to stdout."""
    code = (
        f"import sys; from torshrun.live.line_file import LineFile\n{before}"
        f"for path in {paths}:\n"
        "    file = LineFile(path, sys.exit); file.put(path.encode() + b'\\n'); file.close()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize("links", [["a", "b"], ["a"]])
def test_links_in_a_circle_end(
    tmp_path: Path, links: list[str], open_lines: Callable[[Path], LineFile]
) -> None:
    for link, target in zip(links, links[1:] + links[:1], strict=True):
        (tmp_path / link).symlink_to(target)
    with pytest.raises(ConfigError, match="Too many levels"):
        open_lines(tmp_path / "a")


def test_a_full_disk_is_told_once(
    open_lines: Callable[[str], LineFile], complaints: list[str]
) -> None:
    sink = open_lines("/dev/full")
    for number in range(5):
        sink.record(an_event(number))
    sink.close()
    (complaint,) = complaints
    assert "/dev/full" in complaint
    assert "No space left" in complaint


def test_after_a_full_disk_lines_are_whole_again_and_the_lost_are_counted(
    tmp_path: Path, open_lines: Callable[[Path], LineFile], complaints: list[str]
) -> None:
    path = tmp_path / "events"
    sink = open_lines(path)
    size = len(an_event(0).to_json())
    with biggest_file(size + size // 2):
        for number in range(4):
            sink.record(an_event(number))
        assert soon(lambda: sink._failed - sink._told == 3)
        sink.record(an_event(4))  # the account of those three is lost with it, but not forgotten
        assert soon(lambda: sink._failed - sink._told == 4)
    sink.record(an_event(5))
    sink.close()
    whole, cut, dropped, last = path.read_bytes().splitlines()
    assert rounds(whole) == [0]
    assert an_event(1).to_json().startswith(cut)
    told = Event.from_json(dropped)
    assert (told.name, told.facts) == ("events_dropped", {"count": 4})
    assert faults(told) == ()
    assert rounds(last) == [5]
    assert len(complaints) == 1


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def drain(reader: int) -> bytes:
    data = b""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(reader, 65536):
            data += chunk
    return data


def test_a_fifo_needs_no_reader_at_first_and_survives_the_loss_of_one(
    fifo: Path, open_lines: Callable[[Path], LineFile], complaints: list[str]
) -> None:
    sink = open_lines(fifo)
    for number in range(3):
        sink.record(an_event(number))
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        received: list[bytes] = []
        assert soon(lambda reader=reader, into=received: into.append(drain(reader)) or any(into))
        assert rounds(b"".join(received)) == [number]
        os.close(reader)
    assert complaints == []


def test_a_fifo_that_nobody_reads_holds_up_nothing(
    fifo: Path,
    open_lines: Callable[[Path], LineFile],
    complaints: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_file, "CLOSE_SECONDS", 0.1)
    sink = open_lines(fifo)
    for number in range(1000):
        sink.record(an_event(number, "x" * 1000))  # far more than a pipe holds
    sink.close()
    (complaint,) = complaints
    assert "reader" in complaint


def test_a_reader_that_falls_behind_learns_how_many_events_it_missed(
    fifo: Path,
    open_lines: Callable[[Path], LineFile],
    complaints: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_file, "BACKLOG_BYTES", 20_000)
    sink = open_lines(fifo)
    for number in range(1000):
        sink.record(an_event(number, "x" * 1000))
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    read = bytearray()
    assert soon(lambda: read.extend(drain(reader)) or sink._lines.empty())
    sink.record(an_event(1000))
    sink.close()
    read.extend(drain(reader))
    os.close(reader)
    events = [Event.from_json(line) for line in bytes(read).splitlines()]
    dropped = [event for event in events if event.name == "events_dropped"]
    missed = sum(event.facts["count"] for event in dropped)  # type: ignore[misc]
    assert missed > 0
    assert len(events) - len(dropped) + missed == 1001
    assert events[-1].round == 1000
    assert len(complaints) == 1


def test_a_write_that_never_returns_does_not_hold_up_the_end(
    complaints: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "CLOSE_SECONDS", 0.1)
    go_on = threading.Event()
    sink = LineFile(str(tmp_path / "events"), complaints.append)
    real = sink._write_some

    def stuck(view: memoryview) -> int:
        go_on.wait(10)
        return real(view)

    monkeypatch.setattr(sink, "_write_some", stuck)  # as a network file system does
    sink.record(an_event(0))
    sink.close()
    assert len(complaints) == 1
    go_on.set()
    sink._thread.join(10)
    assert rounds((tmp_path / "events").read_bytes()) == [0]
