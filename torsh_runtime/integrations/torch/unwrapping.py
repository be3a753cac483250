"""From torch's process group to ours over the same backend."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.integrations.torch.group import TorshProcessGroup


def process_group(given: Any) -> ProcessGroup | None:
    """The group for CPU tensors, of the same ranks; None if torsh does not carry it."""
    if not isinstance(given, TorshProcessGroup):
        with suppress(AttributeError, RuntimeError):  # it has nothing for CPUs
            given = given._get_backend(torch.device("cpu"))
    return given.runtime_group() if isinstance(given, TorshProcessGroup) else None
