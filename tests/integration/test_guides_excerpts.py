"""Excerpts of scripts in the guides run as they stand, among lines that define what they use."""

from __future__ import annotations

import importlib.util
from textwrap import indent

import pytest
from support.blocks import shown
from support.launcher import Launcher

REGISTER, CALL = shown("docs/rpc.md", "tr.rpc.register").splitlines()
WITHOUT_TORCH = "\n".join(
    (
        "import asyncio",
        shown("docs/collectives.md", "import numpy"),
        "assert gradient[0] == 1.5",
        "loss = np.full(2, tr.get_rank())",
        shown("docs/collectives.md", "mean = "),
        "assert mean.wait() == 6",
        shown("docs/collectives.md", "mesh = "),
        "assert stage.size() == 2",
        shown("docs/mesh.md", "mesh = "),
        "assert mesh.size('ep') == 1",
        shown("docs/nodes.md", "from torsh_runtime.elastic"),
        shown("docs/clusters.md", "import signal, sys"),
        "mesh = tr.init_device_mesh({'dp': 2, 'cp': 1, 'tp': 2})",
        "tr.nn.manual_seed(0)",
        shown("docs/experts.md", "mesh = "),
        "assert experts.up.shape[0] == 2",
        "mesh, length = tr.init_device_mesh({'dp': 2, 'cp': 2}), 16",
        "model = tr.nn.Sequential(tr.nn.TransformerBlock(8, 2, causal=True))",
        "model.blocks = [model[0]]",
        shown("docs/context-parallel.md", "def attend"),
        "assert model(tr.nn.randn(1, length // 2, 8)).shape == (1, length // 2, 8)",
        "rank, array, step = tr.get_rank(), np.arange(3), 4",
        "def double(values): return 2 * values",
        "def evaluate(): return 5",
        "tr.rpc.init_rpc(f'worker{rank}', rank=rank, world_size=4)",
        REGISTER,
        "tr.barrier()",
        f"assert ({CALL})[2] == 4",
        "names = [f'worker{each}' for each in range(4)]",
        "async def ask():",
        indent(shown("docs/rpc.md", "scores = "), "    "),
        "    return scores",
        "assert asyncio.run(ask()) == [5] * 4",
        "if rank == 0:",
        indent(shown("docs/rpc.md", "# the writer"), "    "),
        "tr.rpc.shutdown()",
        "print('all of them')",
    )
)
WITH_TORCH = "\n".join(
    (
        "import datetime, os, torch, torsh_runtime as tr",
        shown("docs/torch.md", "import torch.distributed"),
        "total = torch.ones(1)",
        "dist.all_reduce(total)",
        "assert total == 2",
        "dist.destroy_process_group()",
        shown("docs/debugging.md", "tr.init_process_group"),
        "assert tr.get_world_size() == dist.get_world_size() == 2",
        "plan, INNER = {}, 8",
        shown("docs/tensor-parallel.md", "plan |= "),
        "assert len(plan) == 3",
        "step = lambda: None",
        shown("docs/failures.md", "from torch.distributed.elastic"),
        "dist.destroy_process_group()",
        "print('all of them')",
    )
)


def run(torshrun: Launcher, script: str, ranks: int) -> tuple[str, str]:
    (torshrun.folder / "excerpts.py").write_text(script)
    code, out, err = torshrun.run("--nproc-per-node", f"{ranks}", "excerpts.py")
    assert code == 0, err
    assert out.count("all of them") == ranks
    return out, err


def test_excerpts_without_torch(torshrun: Launcher) -> None:
    out, _ = run(torshrun, WITHOUT_TORCH, 4)
    assert "[0] 1 4\n" in out  # the version and the step of the weights


@pytest.mark.torch
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
def test_excerpts_with_torch(torshrun: Launcher) -> None:
    torshrun.environ["TORCHELASTIC_ENABLE_FILE_TIMER"] = "1"
    torshrun.share_torch()
    run(torshrun, WITH_TORCH, 2)
