"""The reasons that are found for a namespace that could not be made."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from torshrun.keeper.refusal import explain


@pytest.mark.parametrize(
    ("setting", "value", "command"),
    [
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
    ],
)
def test_a_setting_that_forbids_it_is_named(
    tmp_path: Path, setting: str, value: str, command: str
) -> None:
    path = tmp_path / "sys" / setting
    path.parent.mkdir(parents=True)
    path.write_text(f"{value}\n")
    text = explain("u", errno.EPERM, tmp_path)
    assert "leaving its namespaces (Operation not permitted)" in text
    assert f"sysctl -w {command}`" in text


def test_settings_that_allow_it_are_not_blamed(tmp_path: Path) -> None:
    path = tmp_path / "sys/user/max_user_namespaces"
    path.parent.mkdir(parents=True)
    path.write_text("15000\n")
    text = explain("u", errno.EPERM, tmp_path)
    assert "sysctl" not in text
    assert "CAP_SYS_ADMIN" in text


def test_a_seccomp_filter_is_named(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tx\nSeccomp:\t2\n")
    assert "seccomp=unconfined" in explain("u", errno.EPERM, tmp_path)


def test_a_container_that_hides_proc_is_named(tmp_path: Path) -> None:
    text = explain("m", errno.EPERM, tmp_path)
    assert "mounting a /proc" in text
    assert "systempaths=unconfined" in text


def test_an_unknown_stage_is_no_error(tmp_path: Path) -> None:
    assert "failed in starting (Broken pipe)" in explain("?", errno.EPIPE, tmp_path)
