"""The account that a failing worker leaves of itself in its error file, in torchrun's form."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")


@overload
def record(fn: Callable[P, R], /) -> Callable[P, R | None]: ...
@overload
def record() -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
def record(
    fn: Callable[P, R] | None = None, /
) -> Callable[P, R | None] | Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate a script's main function: an exception that leaves it is written to the file that
    TORCHELASTIC_ERROR_FILE names, if it does, and goes on unchanged.

    Use it as @record or @record(). As in torch, SystemExit is not an exception to be written, and
    with code 0 it becomes a return of None; KeyboardInterrupt is not written either. torshrun
    reports tracebacks without this, too; other launchers need it.
    """
    return _recorded if fn is None else _recorded(fn)


def _recorded(fn: Callable[P, R]) -> Callable[P, R | None]:
    @wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return fn(*args, **kwargs)
        except SystemExit as ending:
            if ending.code == 0:
                return None
            raise
        except Exception as error:
            with contextlib.suppress(Exception):  # nothing here may take the failure's place
                _write(error)
            raise

    return wrapper


def _write(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    import json
    import time
    import traceback

    extra = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(time.time())),
    }
    message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
    unfinished = f"{path}.{os.getpid()}"
    try:
        # Not through a link that waits there. Path would be one import more.
        with open(unfinished, "x", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"message": message}, file)
        os.replace(unfinished, path)  # noqa: PTH105
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)  # noqa: PTH108
