"""The strings that a program is started with, as the system wants them: bytes without a NUL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torsh_runtime.errors import ConfigError


def encoded(what: str, text: str) -> bytes:
    """Its bytes, ended by NUL. Raises ConfigError, which says `what` the text is and never the
    text, which may be a secret, if it has none.
    """
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        raise ConfigError(f"{what} has half a surrogate pair in it, which has no bytes") from None
    if b"\0" in data:
        raise ConfigError(f"{what} has a NUL character in it: no program can have that")
    return data + b"\0"


def encoded_environment(environ: Mapping[str, str]) -> list[bytes]:
    """NAME=value for each variable, as encoded() has it. Raises ConfigError as that does."""
    for name in environ:
        if not name or "=" in name:
            raise ConfigError(f"no environment variable can have the name {name!r}")
    return [
        encoded(f"the environment variable {name!r}", f"{name}={value}")
        for name, value in environ.items()
    ]
