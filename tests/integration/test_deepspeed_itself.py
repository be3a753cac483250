"""The library deepspeed runs under torshrun, and does what our engine does."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest
from support.launcher import Launcher

pytest.importorskip("torch")
if not importlib.util.find_spec("deepspeed"):
    pytest.skip("needs deepspeed (pip install deepspeed)", allow_module_level=True)
if not shutil.which("ninja", path=str(Path(sys.executable).parent)):
    pytest.skip("deepspeed compiles a part for the CPU with ninja", allow_module_level=True)

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parents[1] / "support" / "deepspeed_itself.py"
PATIENCE = 500
"""Seconds; the first run compiles."""


def output(torshrun: Launcher, *argv: str) -> str:
    path = f"{Path(sys.executable).parent}:{torshrun.environ['PATH']}"
    # What it compiles is kept for later runs of the tests.
    kept = str(Path.home() / ".cache" / "torsh-tests" / "deepspeed")
    torshrun.environ |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": kept, "PATH": path}
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")
    torshrun.environ["PYTHONPATH"] = str(SCRIPT.parents[1])
    process = torshrun.start(*argv)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


def test_schedules_and_scales_are_those_of_the_library(torshrun: Launcher) -> None:
    out = output(torshrun, "--nproc-per-node=1", str(SCRIPT), "schedules")
    assert out.count("is the same") == 10
    assert "scales are the same" in out


@pytest.mark.slow
def test_the_library_trains_under_torshrun_with_both_backends(torshrun: Launcher) -> None:
    argv = ("--nproc-per-node=2", str(SCRIPT), "3")
    found = [
        re.findall(r"^\[0\] (\[[-\d., e]+\])$", output(torshrun, *options, *argv), re.M)
        for options in ((), ("--torch-backend=torsh",))
    ]
    assert len(found[0]) == 1
    assert found[0] == found[1]
