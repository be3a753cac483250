"""Ranks that are processes with real GPUs, started by torshrun; several of them may share one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.forked import Raised

from torshrun.topology.gpus import visible

HOME = Path(__file__).parents[2]
_LONG = 400.0
"""Seconds after which ranks that hang are given up."""

_NEEDS = ("nccl", "cupy", "torch")
_ENVIRON = {"NCCL_SOCKET_IFNAME": "lo", "TORSH_ON_GPU_FAILURE": "raise"}
"""Ranks tell of failures by what they return."""
_has_all = bool(visible(os.environ)) and all(map(find_spec, _NEEDS))
needs_gpu = pytest.mark.skipif(not _has_all, reason="needs an NVIDIA GPU, nccl4py, cupy and torch")


def run_on_gpus(ranks: int, body: str, *arguments: Any, **environ: str) -> list[Any]:
    """What a function of gpu_bodies returned on each rank, or Raised(error); with these variables
    in the environment."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "call").write_bytes(pickle.dumps((body, arguments)))
        program = str(HOME / "tests/support/gpu_rank.py")
        launch = [sys.executable, "-m", "torshrun", "--nproc-per-node", str(ranks)]
        path = os.pathsep.join([str(HOME / "tests"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*launch, "--max-restarts", "0", program, folder],
            env={**os.environ, **_ENVIRON, "PYTHONPATH": path, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LONG,
        )
        return [_result(Path(folder, str(rank)), done.stdout) for rank in range(ranks)]


def passed(results: list[Any]) -> list[Any]:
    """The results, of which none is a failure."""
    for rank, result in enumerate(results):
        assert not isinstance(result, Raised), f"rank {rank}: {result.error}"
    return results


def _result(path: Path, output: str) -> Any:
    if path.exists():
        return pickle.loads(path.read_bytes())  # noqa: S301  (our own child)
    return Raised(ChildProcessError(f"it wrote no result:\n{output}"))
