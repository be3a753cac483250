"""Pipeline, data and tensor parallelism on one mesh of 2 x 1 x 2 ranks or, with 8, 2 x 2 x 2."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

WIDTH = 16
ranks = int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2, ranks // 4, 2), mesh_dim_names=("pp", "dp", "tp"))
stage_number = mesh["pp"].get_local_rank()
torch.manual_seed(7 + stage_number)
stage_model = nn.Sequential(
    nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)
)
parallelize_module(stage_model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(stage_model, mesh=mesh["dp"])
stage = PipelineStage(stage_model, stage_number, 2, torch.device("cpu"), group=mesh.get_group("pp"))
schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.SGD(stage_model.parameters(), lr=0.05)
generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
for step in range(4):
    inputs, targets = torch.randn(2, 4, WIDTH, generator=generator)
    losses: list[torch.Tensor] = []
    if stage_number == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets, losses=losses)
    optimizer.step()
    optimizer.zero_grad()
    if losses:
        print("loss", step, dist.get_rank(), torch.stack(losses).mean().item())
dist.destroy_process_group()
