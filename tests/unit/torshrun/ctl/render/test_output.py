"""Where rendered files go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.ctl.render.output import write


def test_into_a_directory_by_name_and_into_a_file(tmp_path: Path) -> None:
    path = write("x\n", str(tmp_path), "job.sh", mode=0o777, force=False)
    assert (path, path.read_text()) == (tmp_path / "job.sh", "x\n")
    path = write("x", str(tmp_path / "b"), "job.yaml", mode=0o600, force=False)
    assert (path, path.stat().st_mode & 0o777) == (tmp_path / "b", 0o600)
    assert sorted(os.listdir(tmp_path)) == ["b", "job.sh"]


def test_what_is_there_stays_unless_it_is_forced(tmp_path: Path) -> None:
    target = tmp_path / "other"
    target.write_text("precious")
    link = tmp_path / "job.sh"
    link.symlink_to(target)
    with pytest.raises(ConfigError, match="exists already: --force replaces it"):
        write("x", str(link), "", mode=0o666, force=False)
    write("x", str(link), "", mode=0o666, force=True)
    assert (link.read_text(), link.is_symlink(), target.read_text()) == ("x", False, "precious")
    assert sorted(os.listdir(tmp_path)) == ["job.sh", "other"]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    for place in (f"{tmp_path}/none/", f"{tmp_path}/none/a"):
        with pytest.raises(ConfigError, match="cannot be written: No such file or directory"):
            write("x", place, "job.sh", mode=0o666, force=False)
