"""Saves a checkpoint after each epoch, is killed, and resumes with the lost epoch.

    torshrun --nproc-per-node 2 --max-restarts 1 examples/checkpoints.py

A worker kills itself once, in the fourth epoch. torshrun reports it and restarts the workers, which
load the newest checkpoint. At the end the job removes its checkpoints. Needs torch.
"""

from __future__ import annotations

import os
import shutil
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torsh_runtime as tr

FOLDER = "checkpoints/example"


def main() -> None:
    tr.init_process_group()
    torch.manual_seed(0)
    inputs = torch.randn(4096, 16)
    dataset = TensorDataset(inputs, inputs @ torch.randn(16, 1))
    sampler = tr.DistributedSampler(dataset)
    loader = DataLoader(dataset, 256 // tr.get_world_size(), sampler=sampler)
    model = tr.DistributedDataParallel(
        nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    state = {"model": model, "optimizer": optimizer}
    with tr.checkpoint.Checkpointer(FOLDER, keep_last=2) as checkpointer:
        loaded = checkpointer.load(state)  # the newest one that is whole, or None
        if loaded and tr.get_rank() == 0:
            print(f"resuming after epoch {loaded.step}")
        for epoch in range(loaded.step + 1 if loaded else 1, 7):
            sampler.set_epoch(epoch)
            for batch, target in loader:
                loss = nn.functional.mse_loss(model(batch), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if epoch == 4 and not loaded and tr.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # an accident
            checkpointer.save(epoch, state, async_op=True)  # a thread writes it meanwhile
            if tr.get_rank() == 0:
                print(f"epoch {epoch}  loss of rank 0 {loss.item():.4f}")
    if tr.get_rank() == 0:
        shutil.rmtree(FOLDER)
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
