"""nccl4py is loaded beside the work of jobs with GPUs, and by no others. Here it is a slow fake."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.real_gpus import HOME

_PROGRAM = """
import os, sys, threading, time
from pathlib import Path
from torsh_runtime.backends import registry
registry._NVIDIA_DRIVER = (Path("/"),)
import torsh_runtime as tr

def names():
    return [each.name for each in threading.enumerate()]

def init(backend):
    tr.init_process_group(backend, "tcp://127.0.0.1:1", world_size=1, rank=0)
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A folder with packages of NCCL and CUDA whose import takes a second."""
    for package, module in (("nccl", "core"), ("cuda", "core")):
        (tmp_path / package).mkdir()
        (tmp_path / package / f"{module}.py").write_text("import time; time.sleep(0.5)\n")
    return tmp_path


def run(slow: Path, program: str) -> list[str]:
    path = f"{slow}:{HOME}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM + program],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "TORSH_SHARE_ARRAYS": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_group_on_gpus_is_there_before_nccl4py_is(slow: Path) -> None:
    program = """
began = time.monotonic()
from torsh_runtime.comm.choosing import backend_type, use_device
use_device(None, backend_type("cpu:native,cuda:nccl"))
print(time.monotonic() - began < 0.4, "torsh-nccl-import" in names())
from torsh_runtime.backends.nccl.loading import _await
_await()
print({"nccl.core", "cuda.core"} <= sys.modules.keys())
"""
    assert run(slow, program) == ["True", "True", "True"]


def test_a_fork_waits_for_modules_that_are_half_loaded(slow: Path) -> None:
    program = """
from torsh_runtime.backends.nccl.loading import begin_loading
begin_loading()
time.sleep(0.1)
child = os.fork()
if not child:
    import nccl.core, cuda.core
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(slow, program) == ["7"]


@pytest.mark.parametrize("backend", ["native", "single", None])
def test_jobs_on_processors_load_none_of_it(slow: Path, backend: str | None) -> None:
    program = f"""
init({backend!r})
print("torsh-nccl-import" in names(), any("nccl.core" in name for name in sys.modules))
"""
    assert run(slow, program) == ["False", "False"]


def test_a_fork_does_not_wait_for_ever_for_a_driver_that_hangs(slow: Path) -> None:
    (slow / "nccl" / "core.py").write_text("import time; time.sleep(1000)\n")
    program = """
import logging
logging.basicConfig(stream=sys.stdout, format="%(message).24s")
from torsh_runtime.backends.nccl import loading
loading._PATIENCE = 0.5
loading.begin_loading()
pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
os._exit(0)
"""
    assert run(slow, program) == ["nccl4py", "has", "not", "been", "loa", "7"]
