"""Transfers a function, its arguments and its results to workers and back.

They are files of a directory that only this user can access.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any

from torsh_runtime.elastic.function import NamedFunction
from torsh_runtime.errors import BackendUnavailable, ConfigError

_ABOUT, _VALUES = "function.json", "values.pickle"
_MAIN = ("__main__", "__mp_main__")


def leave_function(
    place: Path, function: Callable[..., Any], args: Sequence[Any], *, by_value: bool
) -> None:
    """Write what workers need to call the function.

    A function that has a name in a file is sent by its name. Any other, and with `by_value` each
    one of the main module, is sent by value, with everything that it uses of that module. Raises
    ConfigError, also if there is no space for it, and BackendUnavailable without cloudpickle.
    """
    of_main = getattr(function, "__module__", None) in _MAIN
    named = None if by_value and of_main else _name_of(function)
    about = {
        "path": [each or str(Path.cwd()) for each in sys.path],
        "named": None if named is None else asdict(named),
        "source": _source_of(function),
    }
    values = (None if named else function, tuple(args))
    data = _dumped(values, function, by_value=named is None)
    try:
        (place / _ABOUT).write_text(json.dumps(about))
        (place / _VALUES).write_bytes(data)
    except OSError as error:
        raise ConfigError(
            f"cannot write the function and its arguments, {len(data):,} bytes, to {place.parent}: "
            f"{error.strerror}. TMPDIR says where torshrun writes them"
        ) from None


def take_function(place: Path) -> tuple[Callable[..., Any], Sequence[Any], bool]:
    """Return the function, its arguments, and whether it was sent by value."""
    about = json.loads((place / _ABOUT).read_text())
    sys.path[:] = about["path"]
    _remember_source(*about["source"])
    named = about["named"] and NamedFunction(**about["named"]).find()
    function, args = pickle.loads((place / _VALUES).read_bytes())  # noqa: S301 (our user's)
    return named or function, args, not named


def leave_result(place: Path, result: Any, *, by_value: bool) -> None:
    """Write this rank's result.

    If it cannot be pickled, the reason is written, since a failure now would call the function
    again.
    """
    rank, turn = int(os.environ["RANK"]), int(os.environ.get("TORSH_ROUND", "0"))
    try:
        data, kind = _cloudpickle(result) if by_value else pickle.dumps(result), "result"
    except Exception as error:
        data, kind = f"{type(error).__name__}: {error}".encode(), "refused"
    unfinished = place / f"unfinished_{rank}"
    unfinished.write_bytes(data)
    unfinished.replace(place / f"{kind}_{turn}_{rank}")


def take_results(place: Path) -> dict[int, Any]:
    """Return the results of the last round that left any, by rank.

    Raises ConfigError if one could not be pickled.
    """
    # Workers, and multiprocessing in any process, use this module name for classes of the main
    # module.
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])
    files = [(*_turn_and_rank(path), path) for path in place.glob("re*_*_*")]
    last = max((turn for turn, _, _ in files), default=0)
    results = {}
    for rank, path in sorted((rank, path) for turn, rank, path in files if turn == last):
        if path.name.startswith("refused"):
            why = path.read_bytes().decode()
            raise ConfigError(f"the function has run, but rank {rank}'s result is lost: {why}")
        results[rank] = pickle.loads(path.read_bytes())  # noqa: S301 (our own workers')
    return results


def _turn_and_rank(path: Path) -> tuple[int, int]:
    _, turn, rank = path.name.split("_")
    return int(turn), int(rank)


def _name_of(function: Callable[..., Any]) -> NamedFunction | None:
    try:
        return NamedFunction.of(function)
    except ConfigError:
        return None


def _dumped(values: object, function: Callable[..., Any], *, by_value: bool) -> bytes:
    try:
        return _cloudpickle(values) if by_value else pickle.dumps(values)
    except BackendUnavailable:
        raise
    except Exception as error:
        what = "or what it uses" if by_value else "its arguments"
        raise ConfigError(
            f"{function!r}, {what}, cannot be sent to other processes: "
            f"{type(error).__name__}: {error}"
        ) from error


def _cloudpickle(values: object) -> bytes:
    try:
        pickler: Any = import_module("cloudpickle").CloudPickler
    except ImportError:
        raise BackendUnavailable(
            "Sending a function of a notebook, or one without a name of its own,",
            "pip install 'cloudpickle>=3' (tried: 3.1), or put it into a module",
        ) from None
    own = pickler.dispatch_table[CodeType]

    def reduce_code(code: CodeType) -> tuple[Any, ...]:
        make, args, *_ = own(code)
        return _with_file, (code.co_filename, make, args)

    table = ChainMap({CodeType: reduce_code}, pickler.dispatch_table)
    file = io.BytesIO()
    type("Pickler", (pickler,), {"dispatch_table": table})(file).dump(values)
    return file.getvalue()


def _with_file(name: str, make: Callable[..., CodeType], args: Sequence[Any]) -> CodeType:
    """Set the code's file name, which cloudpickle leaves out and tracebacks need."""
    return make(*args).replace(co_filename=name)


def _source_of(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """Return the name and the lines of a notebook's cell, which is in no file."""
    code = getattr(function, "__code__", None)
    name = code.co_filename if isinstance(code, CodeType) else ""
    return (name, []) if Path(name).exists() else (name, linecache.getlines(name))


def _remember_source(name: str, lines: list[str]) -> None:
    """Keep the source lines for tracebacks."""
    if lines:
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
