"""Supplies the sizes at which one algorithm of the native backend gives way to the next.

The values are built in, or measured on this machine by `benchmarks/tune.py`.

The file is JSON:

    {"version": 1, "shm": {"2": {"whole_limit": 4096, ...}, ...}, "tcp": {"tree": 65536, ...}}

Under "shm" stand the numbers of ranks in a node for which it was measured; others take the nearest
lower one. All values are bytes. It is named by TORSH_TUNING, or ~/.config/torsh/tuning.json.

Ranks of a job must read the same values: "tcp" all of them, "shm" those of a node. With different
ones the ranks would take different steps; they compare them when they meet.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.errors import ConfigError

VARIABLE = "TORSH_TUNING"
_DEFAULT_PATH = "~/.config/torsh/tuning.json"
_VERSION = 1
_PAGE = 4096
_LINE = 64
_LARGEST = 64 << 20
_LARGEST_FILE = 1 << 20
_LEAST_LIMITS = {"leader": 0, "tree": 0, "segment": _PAGE, "block": _PAGE}
"""Bytes, of the values between nodes."""


class TuningFile:
    """The measured values; none without a file."""

    def __init__(self, shm: Mapping[int, Mapping[str, int]], tcp: Mapping[str, int]) -> None:
        self._shm = shm
        self._tcp = tcp

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> TuningFile:
        """Read the tuning file. Raises ConfigError naming the file and the fault in it."""
        named = environ.get(VARIABLE)
        path = Path(named or _DEFAULT_PATH)
        with suppress(RuntimeError):  # without HOME and without an entry in passwd "~" is nowhere
            path = path.expanduser()
        try:
            return cls._parse(json.loads(_content(path)))
        except (FileNotFoundError, PermissionError) as error:  # HOME may be another user's
            if named:
                raise ConfigError(f"{VARIABLE}={named}: {error.strerror}") from None
            return cls({}, {})
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ConfigError(
                f"the tuning file {path} cannot be used ({error!r}): make it again with "
                f"benchmarks/tune.py, or remove it"
            ) from None

    @classmethod
    def _parse(cls, content: Any) -> TuningFile:
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, not {_VERSION}")
        shm = {int(ranks): _sizes(values) for ranks, values in content.get("shm", {}).items()}
        return cls(shm, _sizes(content.get("tcp", {})))

    def tuning(self, ranks: int) -> _native.Tuning:
        """Return the values for `ranks` ranks of a node.

        Raises ConfigError if its block size does not fit.
        """
        tuning = _native.Tuning(ranks)
        measured = max((known for known in self._shm if known <= ranks), default=None)
        values = self._shm[measured] if measured is not None else {}
        if "whole_limit" in values:  # measured on this machine, crowded or not
            values = {"crowded_whole_limit": values["whole_limit"], **values}
        _apply(tuning, values)
        least = max(_native.least_block(ranks), tuning.whole_limit, tuning.crowded_whole_limit)
        if tuning.block_bytes % _PAGE or tuning.block_bytes < least:
            raise ConfigError(
                f"tuning: block_bytes ({tuning.block_bytes}) must be a multiple of {_PAGE} and, "
                f"with {ranks} ranks and a whole_limit of {tuning.whole_limit}, at least {least}"
            )
        return tuning

    def limits(self) -> _native.Limits:
        """Return the limits between nodes. Raises ConfigError if one is misaligned or too small."""
        limits = _native.Limits()
        _apply(limits, self._tcp)
        for name, smallest in _LEAST_LIMITS.items():
            value = getattr(limits, name)
            if value % _LINE or value < smallest:
                raise ConfigError(
                    f"tuning: {name} ({value}) must be a multiple of {_LINE} and at least "
                    f"{smallest}"
                )
        return limits

    def between_nodes(self) -> dict[str, int]:
        """Return the values of limits() by name."""
        limits = self.limits()
        return {f"tcp.{name}": getattr(limits, name) for name in _LEAST_LIMITS}

    def in_nodes(self) -> dict[str, int]:
        """Return the values that tuning() uses, by name."""
        return {
            f"shm.{ranks}.{name}": value
            for ranks, values in self._shm.items()
            for name, value in values.items()
        }


def _content(path: Path) -> bytes:
    """Return the beginning of the file without blocking, even if it is a pipe without a writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_LARGEST_FILE)


def _sizes(values: Mapping[str, Any]) -> dict[str, int]:
    for name, value in values.items():
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError(f"{name} is {value!r}, not a number of bytes up to {_LARGEST}")
    return dict(values)


def _apply(target: object, values: Mapping[str, int]) -> None:
    for name, value in values.items():
        if not hasattr(target, name):
            raise ConfigError(f"tuning: there is no value called {name!r}")
        setattr(target, name, value)
