"""Small files that are not what they should be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torshrun.procfs import children, read_stat, read_text


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ab\xff" + bytes(100))
    assert read_text(tmp_path / "file", 3) == "ab\N{REPLACEMENT CHARACTER}"


def test_what_is_no_regular_file_is_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert read_text(tmp_path / "fifo") == ""  # and does not wait for a writer
    for path in (tmp_path, tmp_path / "missing", "/dev/zero", "a\0b"):
        assert read_text(path) == ""


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
