"""Finds torsh_runtime's group over the same backend as one of torch's."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.integrations.torch.group import TorshProcessGroup


def process_group(given: Any) -> ProcessGroup | None:
    """Return torsh_runtime's group of the same ranks for CPU tensors; None if torsh has none."""
    if not isinstance(given, TorshProcessGroup):
        with suppress(AttributeError, RuntimeError):  # it has no backend for CPUs
            given = given._get_backend(torch.device("cpu"))
    return given.runtime_group() if isinstance(given, TorshProcessGroup) else None
