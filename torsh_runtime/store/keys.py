"""Keys derived from a secret, for one purpose each: what proves one thing proves no other."""

from __future__ import annotations

import hmac


def derive(secret: bytes, service: str, *context: str) -> bytes:
    """A key of 32 bytes for this service in this context; b"" of an empty secret (RFC 5869)."""
    if not secret:
        return b""
    parts = [part.encode() for part in (service, *context)]
    info = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    extracted = hmac.digest(b"torsh key 1", secret, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")
