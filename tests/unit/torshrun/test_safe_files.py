"""Files that nobody can lead elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.other_users import STRANGER, needs_root

from torshrun.safe_files import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder.make(str(tmp_path / "above" / "own"))
    yield made
    made.close()


def append(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def test_files_are_added_to_and_for_the_user_alone(folder: Folder) -> None:
    path = Path(folder.path) / "events"
    for data in (b"a", b"b"):
        append(folder.open_for_append(str(path)), data)
    assert path.read_bytes() == b"ab"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path, folder: Folder) -> None:
    precious, pipe = tmp_path / "precious", Path(folder.path) / "pipe"
    (Path(folder.path) / "link").symlink_to(precious)
    (Path(folder.path) / "null").symlink_to("/dev/null")
    (Path(folder.path) / "inside").mkdir()
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):
        folder.open_for_append(str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="no regular file"):
        folder.open_for_append(str(pipe))
    os.close(reader)
    for name in ("link", "null", "inside"):
        with pytest.raises(OSError):  # noqa: PT011  # one of several, by the system
            folder.open_for_append(f"{folder.path}/{name}")
    assert not precious.exists()


def test_a_folder_is_new_and_for_the_user_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        Folder.make(str(tmp_path))
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        Folder.make(str(tmp_path / "link"))
    Folder.make(str(tmp_path / "a" / "b")).close()
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_links_of_ones_own_lead_to_where_a_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "later").symlink_to(tmp_path / "link" / "new")
    Folder.make(str(tmp_path / "link" / "a" / ".." / "own")).close()
    Folder.make(str(tmp_path / "later" / "own")).close()
    made = {path.name: path for path in (tmp_path / "there").iterdir()}
    assert set(made) == {"a", "new", "own"}
    assert [path.name for path in made["new"].iterdir()] == ["own"]


@needs_root
@pytest.mark.parametrize("path", ["link/own", "link/new/own", "mine/own"])
def test_no_link_of_another_users_leads_to_where_a_folder_is_made(
    tmp_path: Path, path: str
) -> None:
    precious, trap = tmp_path / "precious", tmp_path / "link"
    precious.mkdir()
    trap.symlink_to(precious)
    os.lchown(trap, STRANGER, STRANGER)
    (tmp_path / "mine").symlink_to("link/inner")
    with pytest.raises(OSError, match="link is another user's symbolic link"):
        Folder.make(str(tmp_path / path))
    assert list(precious.iterdir()) == []


@needs_root
def test_a_directory_that_was_put_in_the_new_ones_place_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the owner of the one above, who was quicker than this process."""
    mkdir = os.mkdir

    def make_and_lose(path: str, mode: int, *, dir_fd: int) -> None:
        mkdir(path, mode, dir_fd=dir_fd)
        os.rename(path, "moved", src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        mkdir(path, mode, dir_fd=dir_fd)
        os.chown(path, STRANGER, STRANGER, dir_fd=dir_fd)

    monkeypatch.setattr("os.mkdir", make_and_lose)
    with pytest.raises(OSError, match=f"user {STRANGER} has put another in its place"):
        Folder.make(str(tmp_path / "own"))
    assert list((tmp_path / "own").iterdir()) == []


def test_an_error_says_which_file_it_is_about(folder: Folder) -> None:
    path = f"{folder.path}/a/b/log"
    Path(folder.path, "a", "b", "log").mkdir(parents=True)
    with pytest.raises(IsADirectoryError) as caught:
        folder.open_for_append(path)
    assert caught.value.filename == path


def test_what_is_below_goes_with_the_folder_and_not_with_its_path(
    tmp_path: Path, folder: Folder
) -> None:
    moved, precious = tmp_path / "moved", tmp_path / "precious"
    (precious / "x").mkdir(parents=True)
    Path(folder.path).rename(moved)
    Path(folder.path).symlink_to(precious)
    append(folder.open_for_append(f"{folder.path}/x/log"), b"a")
    folder.rename(f"{folder.path}/x/log", "log.1")
    append(folder.open_for_append(f"{folder.path}/x/log"), b"b")
    assert sorted(path.name for path in (moved / "x").iterdir()) == ["log", "log.1"]
    assert list((precious / "x").iterdir()) == []


def test_links_below_are_not_followed_either(tmp_path: Path, folder: Folder) -> None:
    (tmp_path / "precious").mkdir()
    (Path(folder.path) / "x").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="Not a directory"):
        folder.open_for_append(f"{folder.path}/x/log")
    with pytest.raises(ValueError, match="not in the subpath"):
        folder.open_for_append(str(tmp_path / "precious" / "log"))
    assert list((tmp_path / "precious").iterdir()) == []
