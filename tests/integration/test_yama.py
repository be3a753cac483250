"""Ranks get at each other's memory where the system lets only ancestors do that (Yama)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.launcher import Launcher

_SOURCE = Path(__file__).parents[1] / "support" / "yama.c"
_BODY = """
import numpy as np, torsh_runtime as tr
tr.init_process_group()
array = np.full(1 << 20, rank)
tr.broadcast(array, 1)
assert (array == 1).all()
tr.destroy_process_group()
"""

_ALLOWS_ALL = """
import ctypes
ctypes.CDLL(None).prctl(0x59616D61, 1, 0, 0, 0)  # PR_SET_PTRACER: whoever descends from init
open(f"ready-{rank}", "w").close()
while not os.path.exists(f"ready-{1 - rank}"):
    time.sleep(0.01)
"""


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Its processes live under Yama, whose notes are in the folder "yama"."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc), for the stand-in of Yama")
    library, notes = tmp_path / "yama.so", tmp_path / "yama"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    notes.mkdir()
    with Launcher(tmp_path) as launched:
        launched.environ |= {"LD_PRELOAD": str(library), "YAMA": str(notes)}
        yield launched


def noted(launcher: Launcher, what: str) -> dict[str, str]:
    """What was noted so, by the pid of who did it."""
    paths = (launcher.folder / "yama").glob(f"{what}-*")
    return {path.name.partition("-")[2]: path.read_text() for path in paths}


@pytest.mark.parametrize("options", [[], ["--pid-namespace"]])
def test_the_ranks_of_a_keeper_allow_its_descendants(
    launcher: Launcher, options: list[str]
) -> None:
    script = launcher.script(_BODY)
    wrapper = launcher.folder / "wrapper.sh"
    wrapper.write_text(f"#!/bin/sh\n{sys.executable} {script}\nexit $?\n")
    wrapper.chmod(0o700)
    ended = launcher.run("--nproc-per-node", "2", *options, "--no-python", str(wrapper))
    assert ended[0] == 0, ended
    allowed, readers = noted(launcher, "allows"), noted(launcher, "reads")
    assert len(allowed) == 2
    assert set(allowed) == set(readers) == set(readers.values())
    assert len(set(allowed.values())) == 1  # the keeper


def test_other_ranks_allow_nobody_and_do_without(launcher: Launcher) -> None:
    script = launcher.script(_BODY)
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    starter = launcher.folder / "starter.py"
    starter.write_text(
        "import os, socket, subprocess, sys\n"
        "with socket.socket() as probe:\n"
        "    probe.bind(('127.0.0.1', 0))\n"
        "    port = str(probe.getsockname()[1])\n"
        f"job = {{**os.environ, **{job!r}, 'MASTER_PORT': port}}\n"
        f"argv = [sys.executable, {script!r}]\n"
        "start = lambda rank: subprocess.Popen(argv, env={**job, 'RANK': rank})\n"
        "ranks = [start('0'), start('1')]\n"
        "sys.exit(max(rank.wait() for rank in ranks))\n"
    )
    done = subprocess.run(
        [sys.executable, starter],
        env=launcher.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not noted(launcher, "allows")
    assert not noted(launcher, "reads")


def test_what_is_allowed_already_stays_as_it_is(launcher: Launcher) -> None:
    script = launcher.script(_ALLOWS_ALL + _BODY)
    ended = launcher.run("--nproc-per-node", "2", script)
    assert ended[0] == 0, ended
    assert len(noted(launcher, "reads")) == 2
    assert list(noted(launcher, "allows").values()) == ["1", "1"]
