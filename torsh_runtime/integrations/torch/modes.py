"""Detects modes of torch's dispatcher, such as that of selective checkpointing."""

from __future__ import annotations

import torch


def has_modes() -> bool:
    """Return whether any mode is on.

    It may keep the result of an operation and return it again, so results must not be changed in
    place.
    """
    return torch._C._len_torch_dispatch_stack() > 0
