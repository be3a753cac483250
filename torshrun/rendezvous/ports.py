"""TCP ports for rank 0's worker."""

from __future__ import annotations

import errno
import socket

from torsh_runtime.errors import ConfigError
from torshrun.procfs import listener


def choose_port(wanted: int) -> int:
    """Return `wanted` if it is free, or any free port if it is 0.

    Raise ConfigError as bound() does.
    """
    with bound(wanted) as held:
        port: int = held.getsockname()[1]
        return port


class HeldPorts:
    """Two free ports that nobody else is given while they are held, from before the workers start:
    they are bound, but not listened on, with SO_REUSEADDR, as those who serve on them do too.
    """

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, wanted: int = 0) -> tuple[int, int]:
        """Hold two ports, other than before, and return them; the first is `wanted` if it is not 0.

        Raise ConfigError as bound() does.
        """
        former, self._held = self._held, [bound(wanted), bound(0)]
        for held in former:
            held.close()
        master, jax = (held.getsockname()[1] for held in self._held)
        return master, jax

    def release(self) -> None:
        """Release the ports."""
        for held in self._held:
            held.close()
        self._held = []


def bound(port: int) -> socket.socket:
    """Return a socket that holds the port, or any free one if it is 0, until it is closed.

    A server that uses SO_REUSEADDR can still listen there. Raise ConfigError, which names the
    process that holds the port.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind(("", port))
    except OSError as error:
        held.close()
        holder = f": {listener(port)} holds it" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(
            f"master port {port} cannot be used ({error.strerror}){holder}. "
            f"Give another --master-port, or none to get a free one."
        ) from None
    return held
