"""torch.distributed's backend "torsh": import this module, then init_process_group("torsh").

It is a process group in Python over torsh_runtime's own collectives; nothing is compiled against
torch, and DistributedDataParallel, FSDP2, DTensor and tensor parallelism run on it as they are.
CPU tensors only. Making a group tunes the allocator (see `allocator`).
"""

from __future__ import annotations

import torch.distributed as dist

from torsh_runtime.integrations.torch.creation import create
from torsh_runtime.integrations.torch.group import NAME, TorshProcessGroup

__all__ = ["NAME", "TorshProcessGroup", "register"]


def register() -> None:
    """Make the backend known to torch.distributed. Calling it again is harmless."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])


register()
