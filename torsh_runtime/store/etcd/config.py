"""Addresses of an etcd cluster, and the credentials for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from torsh_runtime.errors import ConfigError

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT = 2379
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Address(NamedTuple):
    """Holds the client address of a member."""

    host: str
    port: int
    secure: bool
    """True if the member uses TLS there."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """Describes how to reach an etcd cluster. Raises ConfigError for invalid values.

    Example: `EtcdConfig.parse("etcd0:2379,etcd1:2379", ca="/etc/etcd/ca.pem")`.
    """

    endpoints: tuple[str, ...]
    """Members of one cluster: "host", "host:port", "[ipv6]:port", with or without "http://" or
    "https://". The default port is 2379; without a scheme, TLS is used if `ca` or `cert` is given.
    """
    ca: str | None = None
    """File with the certificates of the authorities that sign the servers' certificates (PEM);
    None for those that the system trusts.
    """
    cert: str | None = None
    """File with this client's certificate (PEM), if the servers require one."""
    key: str | None = None
    """File with the certificate's private key (PEM, not encrypted)."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    request_timeout: float = 5.0
    """Seconds within which every request ends, fail-over between members included."""

    @classmethod
    def parse(
        cls,
        endpoints: str,
        *,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        user: str | None = None,
        password: str | None = None,
        request_timeout: float = 5.0,
    ) -> EtcdConfig:
        """Return the configuration for endpoints in one string, separated by commas."""
        return cls(
            endpoints=tuple(part.strip() for part in endpoints.split(",")),
            ca=ca,
            cert=cert,
            key=key,
            user=user,
            password=password,
            request_timeout=request_timeout,
        )

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise ConfigError("etcd needs at least one endpoint: give host:port")
        for one, other, what in (
            (self.key, self.cert, "a client certificate and its key"),
            (self.user, self.password, "an etcd user and a password"),
        ):
            if (one is None) != (other is None):
                raise ConfigError(f"{what} go together: give both, or none")
        if not 0 < self.request_timeout < math.inf:
            raise ConfigError(
                f"etcd's request timeout must be a finite number of seconds > 0, "
                f"got {self.request_timeout}"
            )
        if self._wants_tls() and any(not address.secure for address in self.addresses()):
            raise ConfigError(
                "certificates are given, and an etcd endpoint begins with http://: "
                "write https://, or leave the certificates out"
            )

    def addresses(self) -> tuple[Address, ...]:
        """Return the members' addresses, in the given order and each once."""
        secure = self._wants_tls()
        return tuple(dict.fromkeys(_parse(text, secure) for text in self.endpoints))

    def tls(self) -> ssl.SSLContext | None:
        """Return the context for TLS connections, or None if no endpoint uses TLS.

        Raises ConfigError if the certificates cannot be used.
        """
        if not any(address.secure for address in self.addresses()):
            return None
        return _context(self.ca, self.cert, self.key)

    def password_in_clear(self) -> tuple[Address, ...]:
        """Return the members to which the password is sent without TLS.

        Others on the network can read it. Members on this machine (localhost, 127.0.0.1, ::1) are
        left out.
        """
        if self.password is None:
            return ()
        return tuple(
            address
            for address in self.addresses()
            if not (address.secure or address.host in _LOCAL_HOSTS)
        )

    def _wants_tls(self) -> bool:
        return self.ca is not None or self.cert is not None


def _parse(text: str, secure: bool) -> Address:
    scheme, mark, rest = text.rpartition("://")
    if mark and scheme not in ("http", "https"):
        raise _wrong(text, f"its scheme is {scheme!r}")
    bare_ipv6 = rest.count(":") > 1 and "[" not in rest
    if bare_ipv6 or any(letter.isspace() for letter in text):
        raise _wrong(text, "it has blanks, or an IPv6 host without brackets")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    if not host or port == 0 or parts.path.strip("/") or parts.query or parts.fragment:
        raise _wrong(text, "it is not just a host and a port")
    if parts.username is not None:
        raise _wrong(text, "user and password are options of their own")
    return Address(host, port or DEFAULT_PORT, scheme == "https" if mark else secure)


def _wrong(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text!r} is not an etcd endpoint: {why}. "
        f"Write host:port, [ipv6]:port, http://host:port or https://host:port."
    )


def _context(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    import ssl

    def no_password() -> str:
        raise ConfigError(f"the key {key} is encrypted; give one that is not")

    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key, no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        if isinstance(error, ConfigError):
            raise
        files = ", ".join(filter(None, (ca, cert, key)))
        raise ConfigError(f"the certificates for etcd ({files}) cannot be used: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context
