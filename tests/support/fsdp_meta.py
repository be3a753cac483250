"""Models on the meta device; each function is one rank's part."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.ddp_faults import raised
from torch import nn

import torsh_runtime as tr
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.framework.torch import TorchFramework

LAYERS, WIDTH = 16, 1024
_MIB = 1 << 20
SMALL = {"auto_wrap_policy": tr.SizeBasedAutoWrap(50), "min_num_params": 0}


class Odd(nn.Module):
    """Tied and frozen parameters, buffers, and a layer that does not call the one in it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 11)
        self.out.weight = self.table.weight
        self.out.bias.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.table(tokens)
        rows = self.attention(rows, rows, rows)[0]
        return self.out(self.norm(rows.transpose(1, 2)).transpose(1, 2))


class Raw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(100))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.weight


def large(rank: int) -> Any:
    """How much memory a model takes at most that is 64 MiB, and its values."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    with torch.device("meta"):
        bare = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    tr.FullyShardedDataParallel(nn.Linear(WIDTH, WIDTH))  # what libraries take once
    before = _most(resets=True)
    model: Any = tr.FullyShardedDataParallel(bare)
    most = (_most() - before) / _MIB
    sums = [float(each.double().sum()) for each in model.state_dict().values()]
    limit = WIDTH**-0.5
    assert all(0.9 * limit < float(each.max()) <= limit for each in model.state_dict().values())
    return most, sums


def _most(resets: bool = False) -> int:
    """The most bytes of this process that were resident since that was last reset."""
    if resets:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    line = next(each for each in status.splitlines() if each.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def odd(rank: int) -> Any:
    torch.manual_seed(rank)
    with torch.device("meta"):
        bare = Odd()
    model: Any = tr.FullyShardedDataParallel(bare, **SMALL)
    assert model.module.out.weight is model.module.table.weight
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(torch.arange(10).reshape(2, 5)).sum().backward()
    optimizer.step()
    return dict(model.state_dict())


def from_rank_0(rank: int) -> Any:
    """Rank 0 has values and the others have none."""
    torch.manual_seed(0)
    with torch.device("cpu" if rank == 0 else "meta"):
        bare = Odd()
    expected = {name: each.clone() for name, each in bare.state_dict().items()}
    return dict(tr.FullyShardedDataParallel(bare, **SMALL).state_dict()), expected


def devices(rank: int) -> list[str]:
    """Where values go, and what is said if ranks have them in different places."""

    def place(_: Any, __: Any, ___: Any, device: str) -> None:
        raise ConfigError(device)

    def wrapped(where: str = "meta", **options: Any) -> str:
        with torch.device(where):
            bare = nn.Linear(8, 8)
        with patch.object(TorchFramework, "materialise", place):
            return raised(lambda: tr.FullyShardedDataParallel(bare, **SMALL, **options))

    found = [wrapped(), wrapped(device=torch.device("cuda", rank)), wrapped(device="nowhere")]
    with patch.object(ProcessGroup, "backend", "cpu:native,cuda:nccl"):
        found += [wrapped(), wrapped("cpu" if rank == 0 else "meta")]
    model: Any = tr.FullyShardedDataParallel(nn.Linear(8, 8), **SMALL)
    model.module.to("meta")
    return [*found, raised(lambda: model(torch.ones(1, 8)))]


def by_function(rank: int) -> Any:
    def fill(module: Any) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.fill_(3.0)

    with torch.device("meta"):
        bare = nn.Sequential(nn.Linear(3, 100), Raw())
    model = tr.FullyShardedDataParallel(bare, **SMALL, param_init_fn=fill)
    values = {float(v) for each in model.state_dict().values() for v in each.flatten()}
    with torch.device("meta"):
        bare = nn.Sequential(nn.Linear(3, 100), Raw())
    return values, raised(lambda: tr.FullyShardedDataParallel(bare, **SMALL))
