"""`import torch` makes the backend "torsh" known, at no cost and without a risk to the import."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from torsh_runtime import contract
from torsh_runtime.integrations import torch_plugin

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

TRACES = """
import json, os, sys, threading, torch
ours = sorted(name for name in sys.modules if name.startswith("torsh"))
links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
         if os.path.exists(f"/proc/self/fd/{fd}")]
kinds = sorted(link.partition(":")[0] for link in links)
print(json.dumps([ours, kinds, threading.active_count(), torch.distributed.is_initialized()]))
"""
USE = """
import json, tempfile, torch, torch.distributed as dist
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("torsh", init_method=f"file://{folder}/s", rank=0, world_size=1)
    dist.all_reduce(tensor := torch.ones(2))
    print(json.dumps([dist.get_backend(), dist.is_backend_available("torsh"), tensor.tolist()]))
    dist.destroy_process_group()
"""
USED = ["torsh", True, [1.0, 1.0]]


def python(code: str, **environ: str) -> tuple[Any, str]:
    """What the code, in a Python of its own, printed as JSON, and its stderr."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), ended.stderr


def test_a_script_needs_no_import_of_ours() -> None:
    assert python(USE) == (USED, "")


def test_it_loads_no_group_and_opens_nothing() -> None:
    (ours, *others), _ = python(TRACES)
    (none, *without), _ = python(TRACES, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    loaded = {name for name in ours if name.startswith("torsh_runtime.")}
    assert loaded == {
        "torsh_runtime.integrations.torch.patches",
        "torsh_runtime.integrations",
        "torsh_runtime.integrations.torch",
        "torsh_runtime.integrations.torch_plugin",
    }
    assert not [name for name in none if name.startswith("torsh_runtime.")]
    assert others == without


@pytest.mark.parametrize("autoload", ["0", "1"])
def test_an_import_of_ours_does_it_too(autoload: str) -> None:
    ours = f"import torsh_runtime.integrations.torch\n{USE}"
    assert python(ours, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload) == (USED, "")


def test_its_variable_is_the_one_of_the_contract() -> None:
    assert torch_plugin._COPIES == contract.COPIES


def test_torch_finds_the_backend_by_its_name() -> None:
    """As torch does from 2.14 on, where it has not asked at its import."""
    looks = """
from importlib.metadata import entry_points
import torch.distributed as dist
assert "torsh" not in dist.Backend.backend_list
if not hasattr(dist.Backend, "_ensure_backend_registered"):  # torch before 2.14
    [entry] = entry_points(group="torch.distributed.backends", name="torsh")
    entry.load()()
"""
    assert python(looks + USE, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == (USED, "")


def test_what_fails_in_it_does_not_fail_the_import_of_torch() -> None:
    broken = "import sys; sys.modules['torsh_runtime.integrations.torch'] = None\n"
    names = "import json, torch; print(json.dumps(torch.distributed.Backend.backend_list))"
    known, said = python(broken + names)
    assert "torsh" not in known
    assert said.startswith('torch.distributed has no backend "torsh": ModuleNotFoundError: ')
    assert said.count("\n") == 1


def test_another_backend_in_gloos_stead_is_passed_over_and_said() -> None:
    names = "import json, torch; print(json.dumps(torch.distributed.is_available()))"
    _, said = python(names, TORSH_TORCH_BACKEND="nonsense")
    assert said == "torsh: TORSH_TORCH_BACKEND='nonsense' is passed over: 'torsh' is possible\n"
