"""Where one algorithm of the native backend gives way to the next: built-in values, or what
`benchmarks/tune.py` measured on this machine.

The file is JSON:

    {"version": 1, "shm": {"2": {"whole_limit": 4096, ...}, ...}, "tcp": {"tree": 65536, ...}}

Under "shm" stand the numbers of ranks in a node for which it was measured; others take the nearest
lower one. All values are bytes. It is named by TORSH_TUNING, or ~/.config/torsh/tuning.json. All
ranks of a job must read the same values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torsh_runtime.backends.library import _native
from torsh_runtime.errors import ConfigError

VARIABLE = "TORSH_TUNING"
_DEFAULT_PATH = "~/.config/torsh/tuning.json"
_VERSION = 1
_PAGE = 4096
_LINE = 64
_BLOCKS_BYTES = 1 << 20
"""Bytes of all ranks' blocks together: what passes through the slots at a time should stay in
the processors' own caches. Measured with blocks of 128 KiB to 4 MiB, 2 and 4 ranks."""
_BLOCK_LIMITS = (64 << 10, 512 << 10)
"""The least and the most bytes of one rank's block."""
_LARGEST = 64 << 20


class TuningFile:
    """The measured values; none without a file."""

    def __init__(self, shm: Mapping[int, Mapping[str, int]], tcp: Mapping[str, int]) -> None:
        self._shm = shm
        self._tcp = tcp

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> TuningFile:
        """Raises ConfigError naming the file and what is wrong in it."""
        named = environ.get(VARIABLE)
        path = Path(named or _DEFAULT_PATH).expanduser()
        try:
            return cls._parse(json.loads(path.read_text()))
        except FileNotFoundError:
            if named:
                raise ConfigError(f"{VARIABLE}={named}: there is no such file") from None
            return cls({}, {})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
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
        """For so many ranks of one node."""
        tuning = _native.Tuning()
        tuning.block_bytes = _default_block(ranks)
        measured = max((known for known in self._shm if known <= ranks), default=None)
        _apply(tuning, self._shm.get(measured, {}) if measured is not None else {})
        if tuning.block_bytes % _PAGE or tuning.whole_limit > tuning.block_bytes:
            raise ConfigError(
                f"tuning: block_bytes ({tuning.block_bytes}) must be a multiple of {_PAGE} and at "
                f"least whole_limit ({tuning.whole_limit})"
            )
        return tuning

    def limits(self) -> _native.Limits:
        """Between nodes."""
        limits = _native.Limits()
        _apply(limits, self._tcp)
        least = {"leader": 0, "tree": 0, "segment": _PAGE, "block": _PAGE}
        for name, smallest in least.items():
            value = getattr(limits, name)
            if value % _LINE or value < smallest:
                raise ConfigError(
                    f"tuning: {name} ({value}) must be a multiple of {_LINE} and at least "
                    f"{smallest}"
                )
        return limits


def read_tuning() -> TuningFile:
    """As this process's environment says."""
    return TuningFile.read(os.environ)


def _default_block(ranks: int) -> int:
    least, most = _BLOCK_LIMITS
    return min(most, max(least, _BLOCKS_BYTES // ranks // _PAGE * _PAGE))


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
