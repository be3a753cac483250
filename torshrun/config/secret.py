"""The job's secret, as its user gives it: from a file or a variable, and good enough to be one."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from torsh_runtime.errors import ConfigError
from torshrun.procfs import open_at_once

SHORTEST = 16
"""Bytes: who records one proof of a shorter one may find it by trying."""
_FEWEST_DIFFERENT = 5  # characters; a random one of any alphabet has more
_LARGEST = 4096
_BETTER = "openssl rand -hex 32 makes a good one"


def read_secret(path: str | None, name: str, environ: Mapping[str, str]) -> str:
    """Return the secret in the file, or else in TORSH_SECRET; "" if there is neither.

    Raise ConfigError, which calls the file `name`, if it is no secret, or others can read it.
    """
    if path is not None:
        return _checked(_content(path, name), f"{name}: {path}")
    text = environ.get("TORSH_SECRET")
    return "" if text is None else _checked(os.fsencode(text), "TORSH_SECRET")


def _content(path: str, name: str) -> bytes:
    try:
        with open(path, "rb", opener=open_at_once) as file:
            _check_access(os.fstat(file.fileno()), path, name)
            return file.read(_LARGEST + 1)
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: {path} cannot be read: {reason}") from None


def _check_access(opened: os.stat_result, path: str, name: str) -> None:
    """Raise ConfigError if others than this user and root may read or change the opened file.

    The group may read a file of root's, who gave it to that group on purpose (a Kubernetes Secret,
    for example).
    """
    if not stat.S_ISREG(opened.st_mode):
        raise ConfigError(f"{name}: {path} is no file")
    if opened.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{name}: {path} belongs to user {opened.st_uid}, who can change it: chown or copy it"
        )
    if opened.st_mode & (0o027 if opened.st_uid == 0 else 0o077):
        raise ConfigError(
            f"{name}: others can read {path} (mode {stat.S_IMODE(opened.st_mode):04o}): "
            f"chmod 600 {path} (640 is possible if it is root's; in Kubernetes defaultMode: 0440)"
        )


def _checked(content: bytes, name: str) -> str:
    if not content.strip():
        raise ConfigError(f"{name} is empty: give a secret, or none at all ({_BETTER})")
    if len(content) > _LARGEST:
        raise ConfigError(f"{name} is too long for a secret (> {_LARGEST} bytes): {_BETTER}")
    try:
        secret = content.decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not text: {_BETTER}") from None
    if len(secret.encode()) < SHORTEST:
        raise ConfigError(f"{name} is too short for a secret (< {SHORTEST} bytes): {_BETTER}")
    if len(set(secret)) < _FEWEST_DIFFERENT:
        raise ConfigError(f"{name} repeats itself and is easy to guess: {_BETTER}")
    return secret
