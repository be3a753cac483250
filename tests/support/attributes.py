"""Finds attributes that are assigned and never read, as misspelt ones are, and exits with 1 then.

    python tests/support/attributes.py [FOLDER]

A type checker takes `self.strat = 0` for a new attribute. So each attribute that a method assigns
to its own object has to be read somewhere: in the packages, benchmarks or tests, or by getattr().
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("torshrun", "torsh_runtime")
READERS = (*PACKAGES, "benchmarks", "tests")
KEPT = {"_diagnosing": "asyncio forgets a task to which nobody has a reference"}
"""Attributes that nobody has to read, and why they are assigned."""


def trees(root: Path, folders: tuple[str, ...]) -> Iterator[tuple[Path, ast.AST]]:
    """Yield the Python files of folders that can be parsed; some tests keep others."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            try:
                yield path, ast.parse(path.read_text())
            except SyntaxError:
                continue


def is_own(node: ast.AST) -> bool:
    """Return whether this assigns an attribute of `self`."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )


def names_read(tree: ast.AST) -> Iterator[str]:
    """Yield the names of attributes that are read, and words of texts, which may be such names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.MatchClass):
            yield from node.kwd_attrs
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from node.value.replace(".", " ").split()


def never_read(root: Path) -> list[str]:
    """Return the attributes that are assigned and never read, with file and line."""
    read = {name for _, tree in trees(root, READERS) for name in names_read(tree)}
    return [
        f"{path.relative_to(root)}:{node.lineno}: self.{node.attr} is assigned and never read"
        for path, tree in trees(root, PACKAGES)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and is_own(node)
        and node.attr not in read
        and node.attr not in KEPT
    ]


if __name__ == "__main__":
    found = never_read(Path(sys.argv[1]) if sys.argv[1:] else ROOT)
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
