"""Refuses accelerate's groups that are made where each rank would train a model of its own.

accelerate makes a process group wherever a launcher started it, but counts a machine without GPUs
as one process (DistributedType.NO) unless it is told to use the CPU. It wraps no model then, and
transformers.Trainer does as it does. Nothing of accelerate is imported here.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torsh_runtime.errors import ConfigError


def check_accelerate(world_size: int) -> None:
    """ConfigError if accelerate is about to make the default group of so many ranks, and means to
    train in each of them apart."""
    module = sys.modules.get("accelerate.state")
    known: dict[str, Any] = getattr(getattr(module, "PartialState", None), "_shared_state", {})
    is_making_it = "distributed_type" in known and "num_processes" not in known
    if not is_making_it or world_size == 1 or _has_deepspeed():
        return
    if getattr(known["distributed_type"], "value", None) == "NO":
        raise ConfigError(
            f"accelerate counts this job as one process (DistributedType.NO), as it found no GPU "
            f"and was not told to use the CPU: each of the {world_size} ranks would train a model "
            f"of its own. Set ACCELERATE_USE_CPU=true, or TrainingArguments(use_cpu=True) or "
            f"Accelerator(cpu=True); leave ddp_backend out, and start the script with "
            f"torshrun --torch-backend torsh"
        )


def _has_deepspeed() -> bool:
    """Whether accelerate hands the job over to DeepSpeed, after the group is made."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in ("1", "true", "yes", "on")
