"""A TCP port for rank 0's worker."""

from __future__ import annotations

import errno
import socket

from torsh_runtime.errors import ConfigError
from torshrun.procfs import listener


def choose_port(wanted: int) -> int:
    """`wanted` if it is free, or any free port if it is 0.

    Raises ConfigError naming the process that holds the port. The port is free when this returns;
    nothing keeps others from taking it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", wanted))
        except OSError as error:
            raise ConfigError(
                f"master port {wanted} cannot be used ({error.strerror}){_holder(wanted, error)}. "
                f"Give another --master-port, or none to get a free one."
            ) from None
        port: int = probe.getsockname()[1]
        return port


def _holder(port: int, error: OSError) -> str:
    return f": {listener(port)} holds it" if error.errno == errno.EADDRINUSE else ""
