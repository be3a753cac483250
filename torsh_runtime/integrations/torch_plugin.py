"""What torch runs at the end of `import torch`: our entry in its group "torch.backends".

torch leaves it out if TORCH_DEVICE_BACKEND_AUTOLOAD is 0. Whatever goes wrong in here must not
end the import of torch. From 2.14 on torch also looks for a backend that it does not know in its
group "torch.distributed.backends", where our entry is `integrations.torch.register`.
"""

import sys


def register() -> None:
    """Make "torsh" known to torch.distributed, which torch has loaded by now where it has any.

    Nothing is opened, and of a process group's code nothing is loaded. A failure is logged.
    """
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return
    try:
        import torsh_runtime.integrations.torch  # noqa: F401  (registers)
    except Exception as error:
        import logging

        log = logging.getLogger(__name__)
        log.warning('torch.distributed has no backend "torsh": %s: %s', type(error).__name__, error)
