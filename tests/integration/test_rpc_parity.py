"""A program that is written for torch's RPC finds the same with ours, one line apart."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.ports import free_port

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]

PROGRAM = Path(__file__).parents[1] / "support" / "rpc_programs.py"
THEIRS = "from torch import futures; import torch.distributed.rpc as rpc"
OURS = "import torsh_runtime.rpc as rpc; futures = rpc"
TIMEOUT = 300
"""Seconds after which the program hangs, however busy the machine is."""


def run(program: Path) -> list[dict[str, Any]]:
    """What each of its processes found."""
    command = [sys.executable, str(program), str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return results


def with_ours(program: Path, folder: Path) -> Path:
    """The same program but for the line that says whose RPC it uses."""
    lines = program.read_text().splitlines()
    changed = [OURS if line.startswith(THEIRS) else line for line in lines]
    assert sum(one != other for one, other in zip(lines, changed, strict=True)) == 1
    copy = folder / program.name
    copy.write_text("\n".join(changed))
    return copy


def test_an_agent_and_its_observers_find_the_same_with_torch_and_with_ours(tmp_path: Path) -> None:
    theirs, ours = run(PROGRAM), run(with_ours(PROGRAM, tmp_path))
    assert len(theirs[0]) == 5, "all scenes"
    for scene, found in theirs[0].items():
        assert ours[0][scene] == found, scene
    assert ours[1:] == theirs[1:]
