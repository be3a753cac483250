"""Rank 0 names its log after all hyperparameters, which is more than a file's name may have.

nproc: 2
culprit: 0
kind: file | limit | exception
hint: too long|ENAMETOOLONG|255|length
needs: torch
seconds: 60
"""

import pathlib
from datetime import timedelta

import torch
import torch.distributed as dist

HYPERPARAMETERS = {
    "model.encoder.hidden_size": 768,
    "model.encoder.num_attention_heads": 12,
    "model.encoder.attention_dropout": 0.1,
    "optimizer.name": "adamw_torch_fused",
    "optimizer.betas": (0.9, 0.95),
    "optimizer.weight_decay": 0.01,
    "scheduler.name": "cosine_with_min_lr",
    "scheduler.warmup_ratio": 0.03,
    "data.preprocessing.max_sequence_length": 2048,
    "data.preprocessing.packing": True,
    "trainer.gradient_accumulation_steps": 16,
}


def log_file(folder):
    folder.mkdir(exist_ok=True)
    name = ",".join(f"{key}={value}" for key, value in HYPERPARAMETERS.items())
    return open(folder / f"{name}.csv", "w")


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    log = log_file(pathlib.Path("runs")) if dist.get_rank() == 0 else None
    for step in range(5):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if log:
            log.write(f"{step},{loss.item()}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
