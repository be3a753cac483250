"""Writes a failing worker's error file in torchrun's form, with the ranks that its error blames
under "torsh", for the search for the root cause.

It is also loaded by its path, by a Python that may lack the rest of torsh_runtime.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

P = ParamSpec("P")
R = TypeVar("R")
_LIBRARIES = ("torsh_runtime", "torch", "numpy", "jax", "cupy")
_DTYPES = {
    **{"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"},
    **{"Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128"},
}
"""Dtypes by their names in torch's recorder."""


@overload
def record(fn: Callable[P, R], /) -> Callable[P, R | None]: ...
@overload
def record() -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
def record(
    fn: Callable[P, R] | None = None, /
) -> Callable[P, R | None] | Callable[[Callable[P, R]], Callable[P, R | None]]:
    """Decorate a script's main function so that its exception is written to the error file.

    The exception is written to the file that TORCHELASTIC_ERROR_FILE names, if it is set, and
    propagates unchanged. As in torch, SystemExit is not an exception to be written, and with code 0
    it becomes a return of None; KeyboardInterrupt is not written either. torshrun does this without
    it, too, for what ends the program; other launchers need it.

    Args:
        fn: The function; without it, a decorator is returned.

    Returns:
        The function that records.

    Example:
        ```python
        @tr.record
        def main() -> None:
            train()
        ```
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
            with contextlib.suppress(Exception):  # no error of ours may replace the failure
                leave_account(error)
            raise

    return wrapper


def leave_account(error: BaseException, *, is_end: bool = False) -> None:
    """Write a report of `error` to the file that TORCHELASTIC_ERROR_FILE names, if it is set.

    If the file already has a report, for instance by torch's @record, add only what that lacks;
    with `is_end`, which says that the process ends at once because of the error, replace it.
    Raises OSError if the file cannot be written.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    import json

    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  (Path would be one import more)
            document = json.load(file)
    except (OSError, ValueError, RecursionError):
        document = {"message": _message(error)}
    if is_end:
        document = {"message": _message(error)}
    elif not isinstance(document, dict) or "torsh" in document:
        return
    document["torsh"] = {**_facts(error), "is_end": is_end}
    unfinished = f"{path}.{os.getpid()}"
    try:
        # "x" does not follow a link that someone may have put there.
        with open(unfinished, "x", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(document, file)
        os.replace(unfinished, path)  # noqa: PTH105
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)  # noqa: PTH108


def _message(error: BaseException) -> dict[str, Any]:
    import time
    import traceback

    extra = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(time.time())),
    }
    return {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}


def _facts(error: BaseException) -> dict[str, Any]:
    import platform
    import time

    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version
    facts: dict[str, Any] = {"at": time.monotonic(), "versions": versions}
    with contextlib.suppress(Exception):
        facts["blame"] = _blame(error)
    with contextlib.suppress(Exception):
        facts |= {"call": next(filter(None, map(_own_call, _chain(error))), "")}
    with contextlib.suppress(Exception):
        facts |= {"recorded": _last_call()}
    return facts


# ---- whom it blames


def _blame(error: BaseException) -> dict[str, Any] | None:
    """Return what the original error blames other ranks for; None if it blames none."""
    origin = next((each for each in reversed([*_chain(error)]) if not _is_internal(each)), None)
    blame = getattr(origin, "blame", None)
    if origin is None or blame is None or not _is_ours(origin):
        return None
    number = _numbering(origin)
    return {
        "how": blame.how,
        "ranks": [number(rank) for rank in blame.ranks if number(rank) >= 0],
        "op": blame.op,
        "calls": {str(number(r)): call for r, call in blame.calls.items() if number(r) >= 0},
    }


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, the error that it was raised from, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)


def _is_ours(error: BaseException) -> bool:
    return type(error).__module__ == "torsh_runtime.errors"


def _is_internal(error: BaseException) -> bool:
    """Return whether the error is internal to torsh_runtime, which raises another one from it."""
    if _is_ours(error):
        return getattr(error, "blame", None) is None
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return str(module).startswith("torsh_runtime.")


def _numbering(error: BaseException) -> Callable[[int], int]:
    """Return a function from ranks of the error's group to ranks of the job.

    The function returns -1 for an unknown rank.
    """
    members = getattr(error, "members", ())
    if members:
        return lambda rank: members[rank] if 0 <= rank < len(members) else -1
    default = sys.modules.get("torsh_runtime.comm.default")
    has_groups = default is not None and default.has_default_group()
    if not has_groups or default.default_group().session.count == 0:  # type: ignore[union-attr]
        return lambda rank: rank  # the default group is the only one
    return lambda rank: -1


# ---- what this rank called


_COLLECTIVES = ("torsh_runtime.comm.", "torch.distributed.distributed_c10d")


def _own_call(error: BaseException) -> str:
    """Return the collective of torsh_runtime or torch that failed, with its arguments.

    Returns "" if the error did not leave one.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if str(frame.f_globals.get("__name__", "")).startswith(_COLLECTIVES):
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
            given = [_shown(name, frame.f_locals.get(name)) for name in names]
            return f"{frame.f_code.co_name}({', '.join(filter(None, given))})"
        trace = trace.tb_next
    return ""


_MOST_NUMBERS = 16


def _shown(name: str, value: Any) -> str:
    if name in ("src", "dst", "peer") and isinstance(value, int):
        return f"{name}={value}"
    if name == "op" and value is not None:
        return str(getattr(value, "name", ""))
    if isinstance(value, list | tuple) and value and isinstance(value[0], int):
        more = ", …" if len(value) > _MOST_NUMBERS else ""
        return f"{name}=[{', '.join(map(str, value[:_MOST_NUMBERS]))}{more}]"
    if isinstance(value, list | tuple) and value:
        return f"{len(value)} x {_shown('', value[0])}"
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}" if shape is not None else ""


def _last_call() -> dict[str, Any] | None:
    """Return the last collective in torch's own recorder; None if there is none."""
    torch = sys.modules.get("torch")
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if torch is None or c10d is None or torch.cuda.is_initialized():  # it would query the device
        return None
    import json

    entries = json.loads(c10d._dump_fr_trace_json(True, False)).get("entries", ())
    if not entries or entries[-1]["is_p2p"]:
        return None
    entry = entries[-1]
    name = str(entry["profiling_name"]).rpartition(":")[2]
    pairs = zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    shapes = [f"{_DTYPES.get(dtype, dtype)}{size}" for dtype, size in pairs]
    return {
        "call": f"{name}({', '.join(shapes[:4])})",
        "group": str(entry["process_group"][0]),
        "number": entry["collective_seq_id"],
    }
