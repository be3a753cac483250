"""Writes events to a file of Chrome's trace format: either all of it is there, or nothing."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from torsh_runtime.errors import TorshError
from torsh_runtime.monitoring.trace_events import Event


class TraceNotWritten(TorshError):
    """Raised when the file cannot be written, with the reason."""


def write_trace(path: str, events: Iterable[Event], about: Mapping[str, object]) -> int:
    """Write the events as one document, compressed if the name ends with .gz. Return its bytes.

    There may be more events than fit into memory. A file of that name is replaced once all is
    written, and stays as it is if that fails. `about` has further facts. Raises TraceNotWritten.
    """
    try:
        with _replaced(path) as file:
            with _text(file, is_compressed=path.endswith(".gz")) as out:
                for part in _parts(events, about):
                    out.write(part)
            file.flush()
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise TraceNotWritten(
            f"{path} cannot be written: {error.strerror or error}; name another file"
        ) from None


def check_place(path: str) -> None:
    """Raise TraceNotWritten if no file can be made there, before any work is done for it."""
    folder = Path(os.path.realpath(path)).parent
    why = "Is a directory" if Path(path).is_dir() else ""
    if not Path(path).exists() and not folder.is_dir():
        why = "No such file or directory" if not folder.exists() else "Not a directory"
    elif not _is_device(path) and not os.access(folder, os.W_OK):
        why = why or "Permission denied"
    if why:
        raise TraceNotWritten(f"{path} cannot be written: {why}; name another file")


def _is_device(path: str) -> bool:
    """Return whether it is a device or a pipe, perhaps of /dev/stdout, which has no name that a
    file can take."""
    return Path(path).exists() and not Path(path).is_file()


def _parts(events: Iterable[Event], about: Mapping[str, object]) -> Iterator[str]:
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=str).encode
    yield '{"traceEvents":['
    separator = "\n"
    for event in events:
        yield separator + encode(event)
        separator = ",\n"
    yield f'\n],"displayTimeUnit":"ns","otherData":{encode(dict(about))}}}\n'


@contextlib.contextmanager
def _text(file: IO[bytes], *, is_compressed: bool) -> Iterator[IO[str]]:
    """Open a text file for the document around `file`, which stays open."""
    if is_compressed:
        with gzip.open(file, "wt", compresslevel=9, encoding="ascii", newline="\n") as out:
            yield out
    else:
        plain = io.TextIOWrapper(file, encoding="ascii", newline="\n")
        yield plain
        plain.detach()  # flushes


@contextlib.contextmanager
def _replaced(path: str) -> Iterator[IO[bytes]]:
    """Open a new file that replaces this one in the end. A device or a pipe is written to."""
    if _is_device(path):
        with Path(path).open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    made = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
    try:
        with made.open("xb") as file:
            yield file
        made.replace(target)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
