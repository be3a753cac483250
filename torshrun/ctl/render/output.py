"""Writes a rendered text to a new file, completely or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from torsh_runtime.errors import ConfigError


def write(text: str, place: str, name: str, *, mode: int, force: bool) -> Path:
    """Write `text` to the file `place`, or to the file `name` in the directory `place`.

    Returns the path of the file. An existing file is replaced only with `force`. Raises ConfigError
    if the file exists or cannot be written.
    """
    path = Path(place) / name if place.endswith("/") or Path(place).is_dir() else Path(place)
    partial = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}")
    try:
        _write_new(partial, text, mode)
        try:
            (os.replace if force else os.link)(partial, path)
        finally:
            with suppress(FileNotFoundError):  # it has been renamed
                partial.unlink()
    except FileExistsError:
        raise ConfigError(f"{path} exists already: --force replaces it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path} cannot be written: {reason}") from None
    return path


def _write_new(path: Path, text: str, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "w", encoding="utf-8", newline="") as file:
        file.write(text)
