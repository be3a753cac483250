"""Spreads a model over the workers with tr.FullyShardedDataParallel.

    torshrun --nproc-per-node 2 examples/torch_fsdp.py

Each worker has its part of the parameters, the gradients and the optimizer's state. The losses are
those of data parallelism. Needs torch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torsh_runtime as tr


def make_model() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(nn.Linear(16, 64), *blocks, nn.Linear(64, 1))


def main() -> None:
    tr.init_process_group()
    torch.manual_seed(0)  # the same data and the same model on all workers
    inputs = torch.randn(4096, 16)
    dataset = TensorDataset(inputs, inputs @ torch.randn(16, 1))
    sampler = tr.DistributedSampler(dataset)
    loader = DataLoader(dataset, 256 // tr.get_world_size(), sampler=sampler)

    model = make_model()
    whole = sum(parameter.numel() for parameter in model.parameters())
    model = tr.FullyShardedDataParallel(model, min_num_params=0)  # else a small one stays whole
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)  # after the model is wrapped
    part = sum(parameter.numel() for parameter in model.parameters())
    print(f"rank {tr.get_rank()} holds {part:,} of {whole:,} parameters")
    for epoch in range(1, 11):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            tr.clip_grad_norm_(model, 1.0)
            optimizer.step()
        mean = loss.detach()
        tr.all_reduce(mean, tr.ReduceOp.AVG)
        if tr.get_rank() == 0:
            print(f"epoch {epoch:2}  loss {mean.item():.4f}")
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
