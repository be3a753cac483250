"""Trainings by torch, each function one rank's part; they return what came out."""

from __future__ import annotations

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

State = dict[str, torch.Tensor]
STEPS = 4


class Net(nn.Module):
    """A small network with a normalisation, whose buffers DDP keeps alike."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.first(inputs)))
        return self.last(torch.relu(self.second(hidden)))


def train(model: nn.Module, rank: int, steps: int = STEPS, width: int = 8) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        inputs = torch.randn(16, width, generator=generator)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


def state_of(model: nn.Module) -> State:
    """The parameters and buffers, whole."""
    return {name: _whole(value).clone() for name, value in model.state_dict().items()}


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def ddp(rank: int) -> State:
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.001)
    train(model, rank)
    return state_of(model)


def ddp_views(rank: int) -> State:
    model = DistributedDataParallel(Net(), gradient_as_bucket_view=True, static_graph=True)
    train(model, rank)
    return state_of(model)


def ddp_hook(rank: int) -> State:
    model = DistributedDataParallel(Net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(model, rank)
    return state_of(model)


def ddp_builtin_hook(rank: int) -> State:
    model = DistributedDataParallel(Net())
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    train(model, rank)
    return state_of(model)


def ddp_compiled(rank: int) -> State:
    model = DistributedDataParallel(Net())
    train(torch.compile(model, backend="aot_eager"), rank)
    return state_of(model)


def compiled_collectives(rank: int) -> State:
    """Before and after a point at which torch.compile has to leave the graph."""

    @torch.compile(backend="aot_eager")
    def step(inputs: torch.Tensor) -> list[torch.Tensor]:
        whole = inputs * 2
        dist.all_reduce(whole)
        torch._dynamo.graph_break()
        dist.all_reduce(whole, async_op=True).wait()
        dist.broadcast(whole, 0)
        parts = [torch.empty_like(whole) for _ in range(2)]
        dist.all_gather(parts, whole + rank)
        return [whole, *parts]

    return dict(zip("abc", step(torch.ones(3) * rank), strict=True))


def ddp_unused(rank: int) -> State:
    """The last layer serves in every other step only."""

    class Sometimes(Net):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            hidden = self.second(torch.relu(self.first(inputs)))
            return self.last(hidden) if inputs.sum() > 0 else hidden

    model = DistributedDataParallel(Sometimes(), find_unused_parameters=True)
    train(model, rank)
    return state_of(model)


def ddp_sparse(rank: int) -> State:
    model = DistributedDataParallel(nn.EmbeddingBag(20, 4, sparse=True))
    for step in range(STEPS):
        words = (torch.arange(6) * (rank + step + 1)) % 20
        model(words, torch.tensor([0, 3])).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad.to_dense()
                parameter.grad = None
    return state_of(model)


def ddp_uneven(rank: int) -> State:
    """Ranks have different numbers of inputs."""
    model = DistributedDataParallel(Net().eval())
    with model.join():
        train(model, rank, steps=STEPS + rank)
    return state_of(model)


def fsdp(rank: int) -> State:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net()
    for layer in (model.first, model.second, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, rank)
    return state_of(model)


def hybrid(rank: int) -> State:
    """Sharded over pairs, replicated between them."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("copy", "part"))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    train(model, rank)
    return state_of(model)


def tensor_parallel(rank: int) -> State:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(model, mesh, plan)
    train(model, 0)
    return state_of(model)


def dtensor(rank: int) -> State:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(64.0).reshape(8, 8)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    product = columns @ rows
    again = columns.redistribute(mesh, [Replicate()])
    return {"product": product.full_tensor(), "whole": again.to_local()}


def zero(rank: int) -> State:
    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(4, 8) * (rank + step)).square().mean().backward()
        optimizer.step()
    return state_of(model)


def pipeline(rank: int) -> State:
    ranks = dist.get_world_size()
    layer = nn.Linear(8, 8)
    stage = PipelineStage(layer, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, _: out.square().mean())
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))
    arguments = (inputs,) if rank == 0 else ()
    schedule.step(*arguments, target=torch.zeros(8, 8) if rank == ranks - 1 else None)
    return {name: value.grad for name, value in layer.named_parameters()}
