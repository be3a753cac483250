"""Runs one rank of torch training steps: `torch_worker.py PLAN.json`, started by spawn.py.

The script is an ordinary one; only the backend's name differs. The plan names it: "torsh", "gloo",
"unedited", which asks for gloo and gets torsh instead, "ours", where the wrapper is torsh's, too,
"horovod", where a DistributedOptimizer of Horovod's interface replaces the wrapper, or "bare",
which trains on each rank alone, without communication. Each rank writes its figures to
`rank-<n>.json` beside the plan.
"""

from __future__ import annotations

import gc
import json
import os
import site
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from spawn import free_port
from timing import Call, Probe, figures, publish, typical
from torch import nn

_CHECKED_STEPS = 3
_TIMEOUT = timedelta(seconds=120)


def join(plan: dict[str, Any]) -> str:
    """Create the default group, and return the first word of the contender's name."""
    library: str = plan["library"].split()[0]
    is_torsh = library in ("ours", "horovod", "torsh", "unedited")
    if is_torsh:
        site.addsitedir(plan["site"])  # for torsh_runtime, after torch's own environment
        import torsh_runtime.integrations.torch  # noqa: F401  (registers the backend)
    name = "torsh" if is_torsh and library != "unedited" else "gloo"
    dist.init_process_group(name, timeout=_TIMEOUT)
    assert hasattr(dist.group.WORLD, "is_torsh") == is_torsh
    return library


def layers(width: int, depth: int) -> nn.Sequential:
    """Return `depth` Linear layers of one width with ReLU between them, the same on all ranks."""
    torch.manual_seed(0)
    linear = [nn.Linear(width, width) for _ in range(depth)]
    return nn.Sequential(*(module for layer in linear for module in (layer, nn.ReLU())))


class Transformer(nn.Module):
    """Applies encoder layers of one width to rows of 64 tokens each."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = [
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        ]
        self.layers = nn.Sequential(*made)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the input's shape (batch, width). Each row is spread over 64 tokens
        first.
        """
        places = torch.linspace(-1, 1, 64)[None, :, None]
        return self.layers(data[:, None, :] * places).mean(1)


def ddp(model: nn.Module) -> nn.Module:
    """Wrap the model in torch's DistributedDataParallel."""
    return nn.parallel.DistributedDataParallel(model)


def own_ddp(model: nn.Module) -> nn.Module:
    """Wrap the model in torsh's DistributedDataParallel."""
    from torsh_runtime.parallel.ddp import DistributedDataParallel

    wrapper: nn.Module = DistributedDataParallel(model)
    return wrapper


def own_fsdp(model: nn.Module) -> nn.Module:
    """Wrap the model in torsh's FullyShardedDataParallel."""
    from torsh_runtime.parallel.fsdp import FullyShardedDataParallel

    wrapper: nn.Module = FullyShardedDataParallel(model)
    return wrapper


def fsdp(model: nn.Sequential) -> nn.Module:
    """Shard parameters, gradients and optimizer state by FSDP2, layer by layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


_MODELS: dict[str, Callable[[int, int], nn.Module]] = {"GPT": Transformer}
_WRAPPERS: dict[tuple[str, bool], Callable[[Any], nn.Module]] = {
    ("FSDP2", False): fsdp,
    ("FSDP2", True): own_fsdp,
}


def horovods(optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
    """Return the optimizer, which averages gradients as Horovod's does."""
    import torsh_runtime.integrations.horovod.torch as hvd

    port = torch.tensor([free_port()])
    dist.broadcast(port, 0)
    os.environ["MASTER_PORT"] = str(int(port))  # torch's own store uses the old port
    hvd.init()
    return hvd.DistributedOptimizer(optimizer, model.named_parameters())


def training_step(model: nn.Module, width: int, batch: int, averages: bool) -> Callable[[], float]:
    """Return a function that does a step on this rank's own batch, and returns its loss.

    averages: whether the optimizer averages gradients.
    """
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if averages:
        optimizer = horovods(optimizer, model)
    torch.manual_seed(1 + dist.get_rank())
    data, target = torch.randn(batch, width), torch.randn(batch, width)

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
        return float(loss)

    return step


def agreed(count: float, bounds: tuple[int, int], group: Any = None) -> int:
    """Return rank 0's count, within the bounds, on all ranks."""
    low, high = bounds
    chosen = torch.tensor([min(max(int(count), low), high)])
    dist.broadcast(chosen, 0, group)
    return int(chosen)


def measure(step: Call, plan: dict[str, Any], probe: Probe, group: Any = None) -> dict[str, Any]:
    """Warm up, then time the steps of all ranks or a group, between two probes of the machine."""
    typically = typical(step, _CHECKED_STEPS)
    count = agreed(plan["seconds"] / 2 / typically, plan["iterations"], group)
    before = probe.look()
    dist.barrier(group)
    times = figures(step, count)
    dist.barrier(group)
    return {"before_ns": before, "after_ns": probe.look(), **times}


def main() -> None:
    path = Path(sys.argv[1])
    plan = json.loads(path.read_text())
    torch.set_num_threads(1)
    library, shape = join(plan), plan["shape"]
    operation = plan["operation"]
    model: nn.Module = _MODELS.get(operation, layers)(shape["width"], shape["depth"])
    nbytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    if library not in ("bare", "horovod"):
        is_ours = library == "ours"
        model = _WRAPPERS.get((operation, is_ours), own_ddp if is_ours else ddp)(model)
    step = training_step(model, shape["width"], shape["batch"], library == "horovod")
    losses = [step() for _ in range(_CHECKED_STEPS)]
    gc.disable()
    probe = Probe(plan["pingpong"], path.parent, dist.get_rank())
    found = {"bytes": nbytes, "losses": losses, **measure(step, plan, probe)}
    record = json.dumps({"rank": dist.get_rank(), "figures": [found]})
    publish(path.with_name(f"rank-{dist.get_rank()}.json"), record.encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
