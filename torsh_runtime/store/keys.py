"""Derives keys from a job's secret, one for each use, so that a proof for one service is worthless
at another (HKDF with HMAC-SHA256, RFC 5869).
"""

from __future__ import annotations

import hmac

KEY_BYTES = 32
_SALT = b"torsh keys 1"
_LENGTH_BYTES = 4


def derive(secret: bytes, service: str, *context: str | bytes) -> bytes:
    """Return the key of 32 bytes for one use of the secret.

    `service` and `context` identify the use, such as the parties and the purpose. Different words,
    or the same text divided into different words, give a different key, and a key reveals nothing
    about another one or the secret. An empty secret gives an empty key, which proves nothing.
    """
    if not secret:
        return b""
    extracted = hmac.digest(_SALT, secret, "sha256")
    info = b"".join(map(_with_length, (service, *context)))
    return hmac.digest(extracted, info + b"\x01", "sha256")


def _with_length(part: str | bytes) -> bytes:
    data = part.encode() if isinstance(part, str) else part
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data
