"""Files that keep output, and what is chosen for them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torshrun.safe_files import Folder
from torshrun.workers.logs.files import GENERATIONS, LineFilter, LogFile
from torshrun.workers.logs.lines import LONGEST


@contextlib.contextmanager
def held(path: Path) -> Iterator[Folder]:
    made = Folder(str(path), os.open(path, os.O_RDONLY))
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with held(tmp_path) as made:
        yield made


def write(path: Path, limit: int, *pieces: bytes) -> None:
    with held(path.parent) as folder:
        file = LogFile(folder, str(path), limit, pytest.fail)
        for piece in pieces:
            file.write(piece)
        file.close()


def kept(path: Path) -> list[bytes]:
    """Contents from the oldest to the latest."""
    older = [Path(f"{path}.{number}") for number in range(GENERATIONS, 0, -1)]
    return [file.read_bytes() for file in [*older, path] if file.exists()]


def test_files_are_added_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, 0, b"a\n", b"b\xff")
    write(path, 0, b"c\n")
    assert kept(path) == [b"a\nb\xffc\n"]


def test_a_full_file_is_renamed_at_a_line_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, 10, b"12345\n678", b"90\nab\ncdefghijkl\nm")
    assert kept(path) == [b"12345\n67890\n", b"ab\ncdefghijkl\n", b"m"]


def test_a_line_without_end_is_cut_at_twice_the_size(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, 10, b"x" * 15, b"x" * 30)
    assert kept(path) == [b"x" * 20, b"x" * 20, b"x" * 5]


def test_an_old_file_that_is_too_large_is_renamed_first(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"y" * 100)
    write(path, 10, b"new")
    assert kept(path) == [b"y" * 100, b"new"]


def test_the_oldest_go(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write(path, 2, *(b"%d\n" % number for number in range(9)))
    assert kept(path) == [b"4\n", b"5\n", b"6\n", b"7\n", b"8\n", b""]


@given(st.lists(st.text("ab\n", min_size=1, max_size=30), max_size=9), st.integers(1, 12))
def test_nothing_is_lost_and_no_file_is_too_large(texts: list[str], limit: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        pieces = [text.encode() for text in texts]
        write(path, limit, *pieces)
        files = kept(path)
        assert b"".join(pieces).endswith(b"".join(files))
        assert len(files) > GENERATIONS or b"".join(files) == b"".join(pieces)
        assert all(limit <= len(file) <= 2 * limit for file in files[:-1])


def test_a_file_that_vanished_is_made_anew(tmp_path: Path, folder: Folder) -> None:
    path = tmp_path / "log"
    file = LogFile(folder, str(path), 4, pytest.fail)
    file.write(b"abc")
    path.unlink()
    file.write(b"de\nrest")
    file.close()
    assert kept(path) == [b"rest"]


def test_a_full_disk_is_complained_of_once(tmp_path: Path, folder: Folder) -> None:
    path = tmp_path / "stdout.log"
    said: list[str] = []
    file = LogFile(folder, str(path), 0, said.append)
    with Path("/dev/full").open("wb") as full:
        os.dup2(full.fileno(), file._fd)
    for _ in range(3):
        file.feed(b"x\n", b"")
    file.close()
    assert said == [f"cannot write {path} (No space left on device); the rest is dropped"]


def test_times_in_files(tmp_path: Path, folder: Folder) -> None:
    file = LogFile(folder, str(tmp_path / "log"), 0, pytest.fail)
    file.feed(b"a\nb", b"T1 ")
    file.feed(b"\nc\n", b"T2 ")
    file.close()
    assert (tmp_path / "log").read_bytes() == b"T1 a\nT1 b\nT2 c\n"


class Filtered:
    """A filter and what it has chosen."""

    def __init__(self, folder: Folder, *needles: bytes) -> None:
        self.path = Path(folder.path) / "filtered"
        self.file = LogFile(folder, str(self.path), 0, pytest.fail, shared=True)
        self.filter = LineFilter(needles, b"[3] ", self.file)

    def chosen(self, *pieces: bytes, stamp: bytes = b"") -> bytes:
        for piece in pieces:
            self.filter.feed(piece, stamp)
        self.filter.close()
        return self.path.read_bytes()


def test_lines_with_one_of_the_words_are_chosen(folder: Folder) -> None:
    chosen = Filtered(folder, b"loss", b"\xff").chosen(b"a\nloss 1\nb\xff\n\nc\nloss 2")
    assert chosen == b"[3] loss 1\n[3] b\xff\n[3] loss 2\n"


def test_a_word_in_pieces_is_found(folder: Folder) -> None:
    assert Filtered(folder, b"loss").chosen(b"a lo", b"ss ", b"1\r\nb\n") == b"[3] a loss 1\n"


def test_bars_are_lines_too(folder: Folder) -> None:
    assert Filtered(folder, b"9").chosen(b"8%\r9%\r10%\r", stamp=b"T ") == b"T [3] 9%\n"


def test_an_endless_line_does_not_fill_the_memory(folder: Folder) -> None:
    made = Filtered(folder, b"x")
    for _ in range(5):
        made.filter.feed(b"x" * LONGEST, b"")
    assert len(made.path.read_bytes()) == 5 * (LONGEST + len(b"[3] \n"))


def test_a_shared_file_that_cannot_be_written_is_given_up(tmp_path: Path, folder: Folder) -> None:
    """Somebody has put a link in its place: what it leads to is not touched."""
    path, precious = tmp_path / "filtered", tmp_path / "precious"
    said: list[str] = []
    file = LogFile(folder, str(path), 0, said.append, shared=True)
    path.unlink()
    path.symlink_to(precious)
    for _ in range(3):
        file.write(b"line\n")
    (line,) = said
    assert line.startswith(f"cannot write {path} (")
    assert not precious.exists()


def test_a_file_that_cannot_be_made_is_an_error(tmp_path: Path, folder: Folder) -> None:
    (tmp_path / "none").touch()
    with pytest.raises(OSError, match="Not a directory"):
        LogFile(folder, str(tmp_path / "none" / "log"), 0, pytest.fail)
