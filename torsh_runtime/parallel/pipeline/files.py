"""Reads and writes tables as text: the CSV of torch.distributed.pipelining, and JSON.

CSV has a line for each rank and in its cells steps such as 0F0, 1B3, 0I1, 0W1; empty cells are
bubbles. Messages in torch's full tables (SEND_F, RECV_B and so on) are ignored: the executor
derives them from the steps. JSON has {"name": ..., "ranks": [["0F0", ...], ...]}.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.pipeline.table import COMPUTES, Kind, Step, Table

_STEP = re.compile(r"([0-9]{1,6})(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD)([0-9]{0,6})")
_MESSAGE = re.compile(r"\d+(SEND|RECV)_[FB]\d*")
_TOGETHER = re.compile(r"\((.*)\)OVERLAP_F_B")
_LARGEST_FILE = 1 << 25
"""Bytes; the times of 64 ranks with 4,096 microbatches take most of it."""
_TOLD = 60
"""Number of characters of a cell, or of a table's name, that messages quote."""


def load_table(path: str | Path) -> Table:
    """Load the table in a file whose name ends in .csv or .json.

    Args:
        path: The file.

    Returns:
        The table, whose name is that of the file or, in JSON, the one it has there.

    Raises:
        ConfigError: For files without a table, naming the rank and the cell, and as read_text().

    Example:
        ```python
        table = load_table("schedule.csv")
        pipeline = tr.PipelineParallel(model, 8, schedule=table, cuts=["blocks.6"], loss_fn=loss_fn)
        ```
    """
    path = Path(path)
    text = read_text(path)
    return from_json(text, path.name) if path.suffix == ".json" else from_csv(text, path.name)


def read_text(path: Path) -> str:
    """Return a file's text.

    Raises ConfigError for a file that this user cannot open, for anything but a regular file, whose
    reading may never begin or end, for one larger than any table, and for one that is not UTF-8.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ConfigError(f"{path} is no regular file: name a file with a table")
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}. Name a file that user {os.geteuid()} may "
            f"read, on every node"
        ) from None
    if len(content) > _LARGEST_FILE:
        raise ConfigError(f"{path} is larger than {_LARGEST_FILE} bytes, as no table is")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text: {error}") from None


def save_table(table: Table, path: str | Path) -> None:
    """Write a table in the format that load_table() reads.

    Args:
        table: The table.
        path: The file; a name that ends in .json is written as JSON, and all others as CSV.

    Raises:
        OSError: If the file cannot be written.

    Example:
        ```python
        save_table(pipeline.table, "schedule.json")
        ```
    """
    path = Path(path)
    text = to_json(table) if path.suffix == ".json" else to_csv(table)
    path.write_text(text, encoding="utf-8")


def to_csv(table: Table) -> str:
    """Return the table as CSV, which torch can read, too."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([map(str, row) for row in table.rows])
    return out.getvalue()


def from_csv(text: str, name: str = "table") -> Table:
    """Read a table from CSV, as to_csv() writes it. Empty lines at the end are ignored."""
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise ConfigError(f"{name}: {error}") from None
    while rows and not rows[-1]:
        rows.pop()
    return _table(rows, name)


def to_json(table: Table) -> str:
    """Return the table as JSON, with a line for each rank."""
    rows = ",\n  ".join(json.dumps([str(step) for step in row]) for row in table.rows)
    return f'{{"name": {json.dumps(table.name)}, "ranks": [\n  {rows}\n]}}\n'


def from_json(text: str, name: str = "table") -> Table:
    """Read a table from JSON, as to_json() writes it."""
    try:
        found = json.loads(text)
        rows = [[str(cell) for cell in row] for row in found["ranks"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f'{name}: not {{"name": ..., "ranks": [[...], ...]}}: {error}') from None
    return _table(rows, _name(found.get("name", name), name))


def _name(told: object, file: str) -> str:
    """Return a table's name, which is shown on terminals, after checking it."""
    if not isinstance(told, str) or not told.isprintable() or len(told) > _TOLD:
        raise ConfigError(
            f"{file}: a table's name is a text of at most {_TOLD} printable characters, and no "
            f"{str(told)[:_TOLD]!r}"
        )
    return told


def _table(rows: list[list[str]], name: str) -> Table:
    return Table(
        tuple(tuple(_steps(row, f"{name}, rank {rank}")) for rank, row in enumerate(rows)), name
    )


def _steps(cells: list[str], where: str) -> Iterator[Step]:
    for number, cell in enumerate(cells):
        together = _TOGETHER.fullmatch(cell.strip())
        for part in together[1].split(";") if together else [cell]:
            text = part.strip()
            if not text or _MESSAGE.fullmatch(text):
                continue
            yield _step(text, f"{where}, cell {number + 1}")


def _step(text: str, where: str) -> Step:
    found = _STEP.fullmatch(text)
    kind = Kind(found[2]) if found else None
    if not found or kind is None or (kind in COMPUTES) != bool(found[3]):
        raise ConfigError(
            f"{where}: {text[:_TOLD]!r} is no step: write stage, F, B, I or W, and microbatch, as "
            f"0F0, or stage and UNSHARD, RESHARD or REDUCE_GRAD"
        )
    return Step(int(found[1]), kind, int(found[3]) if found[3] else None)
