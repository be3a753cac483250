"""The key that jobs on clusters make their secrets of."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from torshrun.clusters.user_key import job_secret, make_user_key, user_key_path


def test_it_is_made_once_and_for_this_user_alone(tmp_path: Path) -> None:
    path = Path(make_user_key({"HOME": str(tmp_path)}))
    assert path == tmp_path / ".config/torshrun/key"
    key = path.read_text()
    assert len(key.strip()) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert make_user_key({"HOME": str(tmp_path)}) == str(path)
    assert path.read_text() == key
    assert [each.name for each in path.parent.iterdir()] == ["key"]


def test_all_nodes_that_come_at_once_find_one(tmp_path: Path) -> None:
    ready, seen = threading.Barrier(16), list[str]()

    def node() -> None:
        ready.wait()
        seen.append(Path(make_user_key({"XDG_CONFIG_HOME": str(tmp_path)})).read_text())

    nodes = [threading.Thread(target=node) for _ in range(16)]
    for each in nodes:
        each.start()
    for each in nodes:
        each.join()
    assert len(seen) == 16
    assert len(set(seen)) == 1
    assert len(seen[0].strip()) == 64


def test_another_users_link_is_not_followed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's link")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "torshrun"
    link.symlink_to(elsewhere)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match="another user's symbolic link"):
        make_user_key({"XDG_CONFIG_HOME": str(tmp_path)})
    assert not any(elsewhere.iterdir())


def test_a_home_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        make_user_key({"HOME": str(tmp_path / "file")})


def test_a_relative_xdg_config_home_counts_as_none(tmp_path: Path) -> None:
    for value in ("relative", "./x", "~/x", ""):
        environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": value}
        assert user_key_path(environ) == str(tmp_path / ".config/torshrun/key")
    there = {"HOME": "relative", "XDG_CONFIG_HOME": str(tmp_path)}
    assert user_key_path(there) == str(tmp_path / "torshrun/key")


def test_a_relative_home_is_none_and_nothing_is_made_in_this_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"not an absolute path.*HOME=relative"):
        make_user_key({"HOME": "relative", "XDG_CONFIG_HOME": "relative"})
    assert not any(tmp_path.iterdir())


def test_jobs_have_secrets_of_their_own() -> None:
    secrets = {job_secret(key, job) for key in ("a", "b") for job in ("slurm-1.0", "slurm-1.1")}
    assert len(secrets) == 4
    assert all(len(secret) == 64 for secret in secrets)
