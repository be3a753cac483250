"""Endpoints at which a store listens, as text: "unix:@name", "unix:/path" or "tcp:host:port".

"unix:@name" is a Linux abstract socket: it has no file, vanishes with its process and may be
reached by every user within the network namespace. IPv6 hosts are put in brackets: "tcp:[::1]:0".
"""

from __future__ import annotations

from typing import NamedTuple

from torsh_runtime.errors import ConfigError

_LONGEST_UNIX_NAME = 107  # sun_path has 108 bytes, one of them NUL


class UnixEndpoint(NamedTuple):
    """Names a Unix socket of this machine; a path that begins with "@" is abstract."""

    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"

    @property
    def address(self) -> str:
        """Return the address that socket.bind and socket.connect take."""
        return "\0" + self.path[1:] if self.path.startswith("@") else self.path


class TcpEndpoint(NamedTuple):
    """Names a TCP port; port 0 asks for any free one and is only for listening."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp:{host}:{self.port}"


Endpoint = UnixEndpoint | TcpEndpoint


def parse_endpoint(text: str) -> Endpoint:
    """Return the endpoint that the text names. Raises ConfigError if it is malformed.

    Example: `parse_endpoint("tcp:[::1]:29400")` is `TcpEndpoint("::1", 29400)`.
    """
    kind, _, rest = text.partition(":")
    if kind == "unix":
        return _parse_unix(text, rest)
    if kind == "tcp":
        return _parse_tcp(text, rest)
    raise _wrong(text, "it begins with neither unix: nor tcp:")


def can_be_looked_up(host: str) -> bool:
    """Return whether the resolver accepts `host` as a name or an address.

    For text that it does not accept, Python raises other errors than for unknown names.
    """
    if host.isascii():
        labels = host.removesuffix(".").split(".")
        return host.isprintable() and all(0 < len(label) < 64 for label in labels)
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _parse_unix(text: str, path: str) -> UnixEndpoint:
    if path in ("", "@") or "\0" in path:
        raise _wrong(text, "the socket has no name")
    if not path.startswith(("@", "/")):
        raise _wrong(text, "a path must be absolute")
    if len(path.encode(errors="surrogateescape")) > _LONGEST_UNIX_NAME:
        raise _wrong(text, f"a socket's name has at most {_LONGEST_UNIX_NAME} bytes")
    return UnixEndpoint(path)


def _parse_tcp(text: str, rest: str) -> TcpEndpoint:
    host, _, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _wrong(text, "an IPv6 host must stand in brackets")
    if not host or "[" in host or "]" in host:
        raise _wrong(text, "there is no host")
    if not can_be_looked_up(host):
        raise _wrong(text, "no host can have that name")
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        raise _wrong(text, f"{port!r} is not a port (0 to 65535)")
    return TcpEndpoint(host, int(port))


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not a store endpoint: {why}. "
        f"Write unix:@name, unix:/path, tcp:host:port or tcp:[ipv6]:port."
    )
