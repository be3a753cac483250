"""Saves the state of a training run to disk and loads it on any number of ranks."""

from torsh_runtime.checkpoint.checkpointer import Checkpointer, Loaded
from torsh_runtime.checkpoint.exporting import export_state_dict
from torsh_runtime.checkpoint.importing import import_state_dict
from torsh_runtime.checkpoint.pieces import DamagedCheckpoint
from torsh_runtime.checkpoint.reader import CheckpointReader
from torsh_runtime.parallel.state import PerRank

__all__ = [
    "CheckpointReader",
    "Checkpointer",
    "DamagedCheckpoint",
    "Loaded",
    "PerRank",
    "export_state_dict",
    "import_state_dict",
]
