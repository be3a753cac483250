"""What CMake says where something is missing: one line, and nothing that stays in its cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def configured(folder: Path, *options: str, **environ: str) -> tuple[int, str]:
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    if not cmake or not ninja:
        pytest.skip("cmake or ninja is not installed (apt-get install cmake ninja-build)")
    command = [cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", str(CHECKOUT), "-B"]
    done = subprocess.run(
        [*command, str(folder / "build"), f"-DPython_EXECUTABLE={sys.executable}", *options],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


def only_line(text: str) -> str:
    """Of all that CMake says; the others are its call stack."""
    (line,) = [line for line in text.splitlines() if "torshrun cannot be built" in line]
    assert len(text.strip().splitlines()) < 8, text
    return line


def test_no_compiler(tmp_path: Path) -> None:
    code, said = configured(tmp_path, PATH=str(tmp_path))
    assert code != 0
    assert "there is no C++ compiler (apt-get install g++, or dnf " in only_line(said)


def test_a_compiler_that_is_too_old_until_there_is_another(tmp_path: Path) -> None:
    old = tmp_path / "old++"
    old.write_text('#!/bin/sh\nexec c++ "$@" -std=c++17\n')
    old.chmod(0o755)
    code, said = configured(tmp_path, CXX=str(old))
    assert code != 0
    assert (
        f"{old} does not know C++20, which GCC does from 11 on and Clang from 14 on"
        in only_line(said)
    )
    _, said = configured(tmp_path, "-DPython_INCLUDE_DIR=/nowhere", CXX="c++")
    assert "has no Python.h" in only_line(said)


def test_no_headers_of_python(tmp_path: Path) -> None:
    code, said = configured(tmp_path, "-DPython_INCLUDE_DIR=/nowhere")
    assert code != 0
    version = "python{}.{}".format(*sys.version_info)
    assert f"has no Python.h (apt-get install {version}-dev, or dnf " in only_line(said)
