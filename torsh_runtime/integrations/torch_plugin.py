"""Registers "torsh" at the end of `import torch`, as an entry point in its group "torch.backends".

torch skips it if TORCH_DEVICE_BACKEND_AUTOLOAD is 0. Errors in here must not break the import of
torch. From version 2.14 on torch also looks for a backend that it does not know in its group
"torch.distributed.backends", where the entry point is `integrations.torch.register`.
"""

import os
import sys

_COPIES = "TORSH_COPIES"  # contract.COPIES: what torch loads by itself stays small


def register() -> None:
    """Register "torsh" with torch.distributed, if torch has loaded that.

    This opens nothing, and loads no code of process groups. A failure is logged.
    """
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    try:
        import torsh_runtime.integrations.torch  # noqa: F401  (registers)

        if _COPIES in os.environ:
            from torsh_runtime import recover
            from torsh_runtime.integrations.torch import protection

            protection.protector = recover
    except Exception as error:
        import logging

        log = logging.getLogger(__name__)
        log.warning('torch.distributed has no backend "torsh": %s: %s', type(error).__name__, error)
