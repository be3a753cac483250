"""Cuts a model into two stages on different workers, and trains them at the same time.

    torshrun --nproc-per-node 2 examples/pipeline.py
    torshrun --nproc-per-node 4 examples/pipeline.py    # two replicas of each stage

A batch goes through the stages in eight microbatches; the losses are those of one process. Needs
torch.
"""

from __future__ import annotations

import torch
from torch import nn

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group()
    torch.manual_seed(0)  # the same model on all workers
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)]
    mesh = tr.init_device_mesh({"pp": 2, "dp": -1})
    replicas = mesh.get_group("dp")
    pipeline = tr.PipelineParallel(
        nn.Sequential(*blocks, nn.Linear(64, 4)),
        num_microbatches=8,
        mesh=mesh,
        cuts=["4.0"],  # the second stage begins with this layer
        schedule="1f1b",
        loss_fn=nn.functional.cross_entropy,
        wrap=lambda stage: tr.DistributedDataParallel(stage, process_group=replicas),
    )
    optimizer = torch.optim.AdamW(pipeline.module.parameters(), lr=1e-2)
    names = [name for name, _ in pipeline.module.named_children()]
    print(f"rank {tr.get_rank()} has the layers {', '.join(names)}")
    data = torch.randn(64, 64)
    target = data.sum(1).gt(0).long()
    mine = slice(mesh.get_local_rank("dp"), None, mesh.size("dp"))  # this replica's rows
    for step in range(1, 21):
        optimizer.zero_grad()
        loss = pipeline.step(data[mine], target[mine])  # the whole batch's, on every worker
        tr.clip_grad_norm_(pipeline.module, 1.0, mesh)
        optimizer.step()
        if step % 5 == 0 and tr.get_rank() == 0:
            print(f"step {step:2}  loss {loss:.4f}")
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
