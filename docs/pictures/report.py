"""Draws a terminal with torshrun's report of a rank that hangs, as the guide to failures has it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from drawing import Picture

GUIDE = Path(__file__).resolve().parents[1] / "failures.md"
COLUMNS = 68
LEFT_OUT = ("  ranks ", "  it wrote nothing")
"""Beginnings of lines that the picture, which is shorter than the guide, leaves out."""


def report() -> Picture:
    """Draw the report of a hanging rank."""
    picture = Picture(
        "report",
        "torshrun's report of a rank that hangs",
        "A terminal: torshrun says which rank the others wait for, where that rank is, that "
        "it most likely failed first, and what to do. Lines that repeat this are left out.",
    )
    lines = [piece for line in shown(command_and_report()) for piece in wrapped(line)]
    picture.box((12, 12, 576, 44 + 18 * len(lines)), style="plain")
    for number in range(3):
        picture.dot(30 + 16 * number, 28, "head")
    for number, line in enumerate(lines):
        picture.label(26, 58 + 18 * number, line, f"mono small {colour(line)}".strip(), "start")
    return picture


def command_and_report() -> list[str]:
    """Return the lines of the guide's first block of code with --hang-timeout.

    Raises:
        SystemExit: The guide has none.
    """
    for block in re.findall(r"^```text\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        if re.match(r"\$ torshrun .*--hang-timeout", block):
            return [str(line) for line in block.splitlines()]
    sys.exit(f"{GUIDE}: no block of code begins with $ torshrun … --hang-timeout")


def shown(lines: list[str]) -> Iterator[str]:
    """Give the lines without those that repeat what the other ranks wait for, and their stacks."""
    stacks, inside = 0, False
    for line in lines:
        if line.startswith("  stack of"):
            stacks, inside = stacks + 1, True
            if stacks == 2:
                yield "      …"
        elif not line.startswith("    "):
            inside = False
        if not (inside and stacks > 1) and not line.startswith(LEFT_OUT):
            yield line


def wrapped(line: str) -> list[str]:
    """Return the line as pieces that fit into the terminal."""
    indent = " " * (len(line) - len(line.lstrip()))
    return wrap(line, COLUMNS, subsequent_indent=f"{indent}  ", break_on_hyphens=False)


def colour(line: str) -> str:
    """Return the style of a line: the command, the conclusion, or anything else."""
    if line.startswith("$"):
        return "blue-text bold"
    return "orange-text bold" if "failed first" in line else ""
