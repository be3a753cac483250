"""Secrets: whose files are believed, and which texts are good enough."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config.secret import SHORTEST, read_secret

GOOD = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{GOOD}\n")
    path.chmod(0o600)
    return path


def read(path: Path) -> str:
    return read_secret(str(path), "--secret-file", {"TORSH_SECRET": "not looked at"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD[:15], f"is too short for a secret .< {SHORTEST} bytes.: openssl rand -hex 32"),
        ("", "is empty: give a secret, or none at all"),
        (" \n", "is empty"),
        (GOOD * 129, "is too long for a secret .> 4096 bytes."),
        ("a" * 64, "repeats itself and is easy to guess: openssl rand -hex 32"),
        ("abab" * 16, "repeats itself"),
        (f"{GOOD}\udcff", "is not text"),
    ],
)
def test_weak_ones_are_refused_wherever_they_come_from(file: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^TORSH_SECRET {said}") as raised:
        read_secret(None, "--secret-file", {"TORSH_SECRET": text})
    assert text.strip() == "" or text not in str(raised.value)
    file.write_bytes(os.fsencode(text))
    with pytest.raises(ConfigError, match=f"^--secret-file: {file} {said}"):
        read(file)


def test_a_variable_that_is_not_set_is_none() -> None:
    assert read_secret(None, "--secret-file", {}) == ""


def test_as_long_a_secret_as_may_be_counts_to_its_end(file: Path) -> None:
    long = GOOD * 128
    file.write_text(long)
    assert read(file) == long


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602, 0o666, 0o620, 0o660])
def test_a_file_that_others_can_read_or_change_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}\): chmod 600 {file}") as raised:
        read(file)
    assert str(raised.value).count("--secret-file") == str(raised.value).count(str(file)) - 1 == 1


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o700])
def test_a_file_of_ones_own_is_believed(file: Path, mode: int) -> None:
    file.chmod(mode)
    assert read(file) == GOOD


@as_root
def test_the_group_may_read_a_file_of_roots_only(file: Path) -> None:
    file.chmod(0o440)
    assert read(file) == GOOD
    os.chown(file, 1234, -1)
    with pytest.raises(ConfigError, match="belongs to user 1234, who can change it"):
        read(file)


@as_root
def test_a_file_of_ones_own_is_not_for_the_group(file: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    os.chown(file, 1234, -1)
    file.chmod(0o640)
    os.seteuid(1234)
    try:
        with pytest.raises(ConfigError, match=r"others can read .* \(mode 0640\)"):
            read(file)
        file.chmod(0o600)
        assert read(file) == GOOD
    finally:
        os.seteuid(0)


def test_links_are_followed_to_the_file_that_counts(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"  # as Kubernetes mounts a secret
    link.symlink_to(file)
    assert read(link) == GOOD
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644"):
        read(link)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for path, said in (("fifo", "is no file"), ("none", "No such file"), ("", "directory")):
        with pytest.raises(ConfigError, match=said):
            read(tmp_path / path)
    with pytest.raises(ConfigError, match="is no file"):
        read_secret("/dev/zero", "--secret-file", {})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret("a\0b", "--secret-file", {})
