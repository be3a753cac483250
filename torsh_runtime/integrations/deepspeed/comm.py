"""Passes on torch.distributed, for programs with `import deepspeed.comm as dist`."""

from __future__ import annotations

from typing import Any

import torch.distributed


def __getattr__(name: str) -> Any:
    """Return torch.distributed's attribute of this name."""
    return getattr(torch.distributed, name)
