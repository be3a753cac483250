"""Defines what the peers of `benchmarks/recovery.py` train, in torch, and what they print."""

import os
import time
from pathlib import Path

import numpy as np
import torch


def training(width, rank, ranks):  # type: ignore[no-untyped-def]
    """Return the model, its optimizer and this rank's rows of the batch."""
    torch.manual_seed(0)
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = np.random.default_rng(1).standard_normal((64, width)).astype(np.float32)
    return model, optimizer, torch.from_numpy(data[rank::ranks].copy())


def say_start(rank: int) -> None:
    """Print that this process is ready to meet the others, and its age in seconds."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    begun = int(ticks) / os.sysconf("SC_CLK_TCK")
    lead = time.clock_gettime(time.CLOCK_BOOTTIME) - begun
    print(f"start {rank} {os.getpid()} {lead:.6f}", flush=True)


def say_commit(number: int) -> None:
    """Print that this rank has committed a step."""
    print(f"commit {number} {time.monotonic():.6f}", flush=True)
