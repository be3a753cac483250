"""Keys made of a job's secret, one for each use, so that what is proved to one service is worth
nothing at another (HKDF with HMAC-SHA256, RFC 5869).
"""

from __future__ import annotations

import hmac

KEY_BYTES = 32
_SALT = b"torsh keys 1"
_LENGTH_BYTES = 4


def derive(secret: bytes, service: str, *context: str | bytes) -> bytes:
    """The key of 32 bytes for one use of the secret: the service, and between whom or for what.

    Other words, or the same ones cut differently, give another key, and no key tells anything of
    another or of the secret. An empty secret gives an empty key: nothing is proved by it.
    """
    if not secret:
        return b""
    extracted = hmac.digest(_SALT, secret, "sha256")
    info = b"".join(map(_with_length, (service, *context)))
    return hmac.digest(extracted, info + b"\x01", "sha256")


def _with_length(part: str | bytes) -> bytes:
    data = part.encode() if isinstance(part, str) else part
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data
