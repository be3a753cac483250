"""Modes of torch's dispatcher, as selective checkpointing's."""

from __future__ import annotations

import torch


def has_modes() -> bool:
    """Whether any is on. It may keep what an operation returns, and return it once more, so nothing
    is to be written in place to that."""
    return torch._C._len_torch_dispatch_stack() > 0
