"""The full state of an FSDP model is gathered on the main process only.

Gathering is collective: rank 0 waits for the shards of the others, which have finished.

nproc: 3
culprit: 0
kind: missing | early_exit | exception
hint: all_?gather|rank 0
needs: torch
seconds: 120
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

is_main = os.environ["RANK"] == "0"

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
fully_shard(model, mesh=mesh)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(3):
    opt.zero_grad()
    loss = model(torch.randn(6, 12)).square().mean()
    loss.backward()
    opt.step()
    if is_main:
        print(f"step {step} loss {loss.item():.4f}", flush=True)

if is_main:  # "only one process should write"
    full = {name: p.full_tensor() for name, p in model.named_parameters()}
    torch.save(full, "model.pt")
    print("saved")
