"""torch.distributed's backend "torsh": init_process_group("torsh").

It is a process group in Python over torsh_runtime's own collectives; nothing is compiled against
torch, and DistributedDataParallel, FSDP2, DTensor and tensor parallelism run on it as they are.
CPU tensors only. Making a group tunes the allocator (see `allocator`).

torch imports this by itself (see `integrations.torch_plugin`); where it is told not to, a script
does. What the group needs is loaded when the first one is made.
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
"""The environment variable that puts this backend, if it is its name, in gloo's stead."""


def register() -> None:
    """Make the backend known to torch.distributed. Calling it again is harmless."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        patches.install()
        asked = os.environ.get(STEAD, "")
        if asked == NAME:
            patches.put_in_gloos_stead()
        elif asked:
            sys.stderr.write(f"torsh: {STEAD}={asked!r} is passed over: {NAME!r} is possible\n")


def _create(given: Any, options: object) -> Any:
    """As `creation.create`."""
    from torsh_runtime.integrations.torch.creation import create

    return create(given, options)


register()
