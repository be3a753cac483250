"""Small files that are not what they should be."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.processes import soon

from torshrun.procfs import blocked_writers, children, ended_badly, holds_back, read_stat, read_text


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ab\xff" + bytes(100))
    assert read_text(tmp_path / "file", 3) == "ab\N{REPLACEMENT CHARACTER}"


def test_what_is_no_regular_file_is_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_text(tmp_path / "fifo") == ""  # and does not wait for a writer
    for path in (tmp_path, tmp_path / "missing", "/dev/zero", "a\0b"):
        assert read_text(path) == ""


def test_a_signal_that_a_process_blocks_is_held_back() -> None:
    script = "trap '' USR1; kill -STOP $$; sleep 20"
    with subprocess.Popen(["sh", "-c", script]) as process:
        assert soon(lambda: (found := read_stat(process.pid)) is not None and found.state == "T")
        process.send_signal(signal.SIGTERM)  # which it gets when it goes on
        process.send_signal(signal.SIGUSR1)  # which it ignores
        assert holds_back(process.pid, signal.SIGTERM)
        assert not holds_back(process.pid, signal.SIGUSR1)
        assert not holds_back(process.pid, signal.SIGINT)
        process.kill()


def test_this_process() -> None:
    stat = read_stat(os.getpid())
    assert stat is not None
    assert (stat.name, stat.state) == (Path("/proc/self/comm").read_text().strip(), "R")
    assert stat.parent == os.getppid()
    assert stat.cpu > 0


@pytest.mark.parametrize("pid", [-1, 2**30])
def test_no_process(pid: int) -> None:
    assert read_stat(pid) is None
    assert children(pid) == []


def test_programs_that_ended_badly_and_of_which_nobody_took_notice() -> None:
    with (
        subprocess.Popen(["sh", "-c", "exit 3"]) as failed,
        subprocess.Popen(["sh", "-c", "kill -9 $$"]) as killed,
        subprocess.Popen(["true"]) as fine,
        subprocess.Popen(["sleep", "60"]) as alive,
    ):
        try:
            ended = [failed, killed, fine]
            assert soon(lambda: all(_is_zombie(each.pid) for each in ended))
            assert sorted(ended_badly(os.getpid())) == [("sh", 9), ("sh", 3 << 8)]
        finally:
            alive.kill()
    assert ended_badly(os.getpid()) == []


def test_programs_that_write_into_a_pipe_that_nobody_reads() -> None:
    with subprocess.Popen(["cat", "/dev/zero"], stdout=subprocess.PIPE) as writer:
        try:
            if not soon(lambda: "pipe_write" in read_text(f"/proc/{writer.pid}/wchan")):
                pytest.skip("this kernel does not tell what a process waits for")
            assert blocked_writers(os.getpid()) == [("cat", writer.pid)]
        finally:
            writer.kill()
    assert blocked_writers(os.getpid()) == []


def _is_zombie(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and stat.state == "Z"
