"""scripts/wheels on machines that lack this or that: what it says, before it begins."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.release import CHECKOUT

TOOLS = ("bash", "dirname", "sed")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """What a machine has that has nothing else."""
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (tmp_path / name).symlink_to(found)
    return tmp_path


def said(tools: Path, *arguments: str, **environ: str) -> str:
    done = subprocess.run(
        [CHECKOUT / "scripts" / "wheels", *arguments],
        env={"PATH": str(tools), "PYTHON": sys.executable, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    return line


def test_another_processor(tools: Path) -> None:
    assert "a way to build for 'riscv64': x86_64 or aarch64" in said(tools, "riscv64")


def test_no_python(tools: Path) -> None:
    assert "lacks Python 3.11 or later (/nowhere is none)" in said(tools, PYTHON="/nowhere")


def test_no_packages_of_debian(tools: Path) -> None:
    assert "lacks apt-get, which brings Python's headers" in said(tools)
    for name in ("apt-get", "dpkg-deb"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    assert "lacks the keys of" in (line := said(tools)) or "lacks a Debian mirror" in line
