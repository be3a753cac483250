"""The blocks of code that the documentation shows, and which of them the tests take from there.

A test gets a block from `shown`, by its page and its first words. So the inventory of what is run,
in tests/site/test_blocks.py, is the list of these calls, and needs no list of its own. A block that
no test can run has the reason in a comment in the line before it, which no reader of the page sees:

    <!-- not run: needs two hosts -->
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/README.md")
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+) -->\n)?"
    r"```(?P<language>.*)\n(?P<text>(?:.*\n)*?)```$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code on a page."""

    page: str
    line: int
    """The number of the line with its first backquotes."""
    language: str
    text: str
    reason: str
    """Why no test runs it; empty if nothing is said."""

    def __str__(self) -> str:
        first = self.text.partition("\n")[0]
        return f"{self.page}:{self.line}: {self.language or 'no language'}: {first}"


def pages() -> list[str]:
    """Return the pages with blocks for readers, relative to the root of the repository."""
    found = (path for pattern in _PAGES for path in ROOT.glob(pattern))
    names = (str(path.relative_to(ROOT)) for path in found)
    return sorted(name for name in names if not name.startswith("docs/decisions/"))


@cache
def blocks_of(page: str) -> tuple[Block, ...]:
    """Return the blocks of a page in their order."""
    text = (ROOT / page).read_text()
    return tuple(_blocks(page, text))


def _blocks(page: str, text: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("language")) + 1
        language, reason = found["language"], found["reason"] or ""
        yield Block(page, line, language, found["text"], reason)


def shown(page: str, beginning: str) -> str:
    """Return the text of the page's only block that begins with these words, for a test to run."""
    return _the_one(page, beginning).text


def _the_one(page: str, beginning: str) -> Block:
    found = [block for block in blocks_of(page) if block.text.startswith(beginning)]
    assert len(found) == 1, f"{page}: {len(found)} blocks begin with {beginning!r}, not one"
    return found[0]


def taken() -> dict[Block, list[str]]:
    """Return the blocks that tests get from `shown`, each with the tests' files and lines."""
    found: dict[Block, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "from support.blocks import" in (text := path.read_text()):
            for place, (page, beginning) in _calls(text):
                where = f"{path.relative_to(ROOT)}:{place}"
                found.setdefault(_the_one(page, beginning), []).append(where)
    return found


def _calls(text: str) -> Iterator[tuple[int, tuple[str, str]]]:
    """Give the line and the arguments of each call of `shown`, which must be written out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "shown":
            page, beginning = (ast.literal_eval(argument) for argument in node.args)
            yield node.lineno, (page, beginning)


def worker_lines(text: str) -> list[str]:
    """Return the sorted lines of workers in a job's output, with # in place of each number."""
    lines = re.findall(r"(?m)^\[\d+\] .*$", text)
    return sorted(re.sub(r"-?\d+(?:\.\d+)?", "#", line) for line in lines)


def sessions(text: str) -> list[tuple[str, list[str]]]:
    """Return each command after a prompt in a block, with the lines that it prints."""
    commands = (part.splitlines() for part in re.split(r"(?m)^\$ ", text)[1:])
    return [(line, output) for line, *output in commands]
