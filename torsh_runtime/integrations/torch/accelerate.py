"""Refuses accelerate's groups that are made where each rank would train its own model.

accelerate creates a process group wherever a launcher started it, but counts a machine without GPUs
as one process (DistributedType.NO) unless it is told to use the CPU. Then it wraps no model, and
transformers.Trainer follows it. This module imports nothing of accelerate.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torsh_runtime.errors import ConfigError


def check_accelerate(world_size: int) -> None:
    """Raise ConfigError if accelerate creates the default group, but would train each rank
    separately.
    """
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
    """Return whether accelerate hands the job to DeepSpeed once the group is created."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() in ("1", "true", "yes", "on")
