"""torch.distributed, for programs with `import deepspeed.comm as dist`."""

from __future__ import annotations

from typing import Any

import torch.distributed


def __getattr__(name: str) -> Any:
    """As torch.distributed's."""
    return getattr(torch.distributed, name)
