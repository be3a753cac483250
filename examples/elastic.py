"""Loses no step when its workers are killed, because each step's state is kept in memory.

    torshrun --nproc-per-node 2 --max-restarts 1 examples/elastic.py

Each step ends with a commit, which torshrun's agent keeps. The workers kill themselves once, at
step 30, and resume there. No sample is taken twice in an epoch. Needs torch.
"""

from __future__ import annotations

import os
import signal

import torch
from torch import nn

import torsh_runtime as tr

data = torch.randn(1200, 10, generator=torch.Generator().manual_seed(0))


@tr.elastic.run
def train(state: tr.elastic.State) -> None:
    print(f"rank {tr.get_rank()} begins after step {state.step}")
    while state.sampler.epoch < 5:
        for indices in state.sampler:
            inputs = data[indices]
            loss = (state.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            state.optimizer.zero_grad()
            loss.backward()
            state.optimizer.step()
            state.step += 1
            state.commit()
            if state.step == 30 and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
                os.kill(os.getpid(), signal.SIGKILL)  # an accident
    print(f"rank {tr.get_rank()}: loss {loss.item():.4f} after {state.step} steps")


def main() -> None:
    tr.init_process_group()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    model = tr.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sampler = tr.elastic.ElasticSampler(data, batch_size=60)  # for all workers together
    train(tr.elastic.State(model=model, optimizer=optimizer, sampler=sampler, step=0))
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
