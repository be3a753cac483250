"""Adds the backend "torsh" to torch.distributed: init_process_group("torsh").

It is a process group in Python over torsh_runtime's own collectives. Nothing is compiled against
torch, and DistributedDataParallel, FSDP2, DTensor and tensor parallelism run on it unchanged. It
takes CPU tensors only. Creating a group tunes the allocator (see `allocator`).

torch imports this package by itself (see `integrations.torch_plugin`); if that is turned off, the
script must import it. The modules of a group are loaded when the first group is created.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch.distributed as dist

from torsh_runtime.integrations.torch import patches

__all__ = ["NAME", "STEAD", "register"]

NAME = "torsh"
STEAD = "TORSH_TORCH_BACKEND"
"""The environment variable that makes this backend replace gloo if it is set to its name."""


def register() -> None:
    """Register the backend with torch.distributed. Calling it again is harmless."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        patches.install()
        asked = os.environ.get(STEAD, "")
        if asked == NAME:
            patches.put_in_gloos_stead()
        elif asked:
            sys.stderr.write(f"torsh: {STEAD}={asked!r} is passed over: {NAME!r} is possible\n")


def _create(given: Any, options: object) -> Any:
    """Load `creation`, and call its create()."""
    from torsh_runtime.integrations.torch.creation import create

    return create(given, options)


register()
