"""Directories of checkpoints, made by one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torsh_runtime.checkpoint import Checkpointer


def saved(directory: Path, *steps: int, size: int = 100_000, **options: Any) -> Checkpointer:
    """A directory of checkpoints with one array each, which holds the step."""
    checkpointer = Checkpointer(directory, **options)
    for step in steps:
        checkpointer.save(step, {"array": np.full(size, float(step))})
    return checkpointer


def only_file(path: Path) -> Path:
    (found,) = path.glob("*.safetensors")
    return found
