"""Says how many typing errors mypy names: `scripts/typos [--seed N] [--count N] [FOLDER…]`.

Typos of the kinds that people make are planted in a copy of the packages, at places that only the
seed decides: one in a file, so that what mypy says of a place is due to its own typo. Then mypy
runs once, as scripts/check runs it. A typo is named if mypy finds an error in its file, where it
finds none without it: a name that is misspelt where it is made is missed where it is used.
What mypy misses, the check of unread attributes may name: such typos are printed, and not counted.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import attributes

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("torsh_runtime/parallel", "torsh_runtime/backends", "torsh_runtime/comm", "torshrun")
LEAST = 0.95
"""The share of typos that are to be named."""
LIMIT = 900.0
"""Seconds for the run of mypy."""


@dataclass(frozen=True)
class Typo:
    """One place, and what stands there instead."""

    kind: str
    line: int
    column: int
    old: str
    new: str


@dataclass(frozen=True)
class Planted:
    """A typo in a file."""

    file: Path
    typo: Typo

    def __str__(self) -> str:
        typo = self.typo
        return f"{self.file}:{typo.line}: {typo.kind}: {typo.old!r} -> {typo.new!r}"


class Sites(ast.NodeVisitor):
    """Collects the places of a file at which somebody could mistype."""

    def __init__(self, text: str, chance: random.Random) -> None:
        self._lines = text.splitlines()
        self._chance = chance
        self._modules: set[str] = set()
        self._known = set(re.findall(r"\w+", text))
        self._takes: dict[str, list[str]] = {}
        self.found: list[Typo] = []

    def visit(self, node: ast.AST) -> None:
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            super().visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self._modules |= {(each.asname or each.name).partition(".")[0] for each in node.names}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        kinds = [each.annotation for each in node.args.args if each.arg not in ("self", "cls")]
        self._takes[node.name] = [ast.unparse(kind) if kind else "Any" for kind in kinds]
        last = node.body[-1]
        gives = node.returns is not None and ast.unparse(node.returns) not in ("None", "Any")
        if gives and isinstance(last, ast.Return) and last.value is not None:
            self._add("return", last, "return ", "")
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        self._add("await", node, "await ", "")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            if keyword.arg is not None:
                self._misspell("keyword", keyword, keyword.arg, keyword.col_offset)
        self._swap(node)
        if isinstance(node.func, ast.Attribute):
            of = node.func.value
            is_module = isinstance(of, ast.Name) and of.id in self._modules
            self._misspell_end("function" if is_module else "method", node.func)
            self.visit(of)
        else:
            self.visit(node.func)
        for each in [*node.args, *node.keywords]:
            self.visit(each)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        is_member = isinstance(node.value, ast.Name) and node.value.id[0].isupper()
        self._misspell_end("member" if is_member and node.attr.isupper() else "attribute", node)
        self.generic_visit(node)

    def _swap(self, node: ast.Call) -> None:
        """Exchange two neighbouring arguments whose types differ, as far as this file tells."""
        called = ast.unparse(node.func).removeprefix("self.")
        kinds = self._takes.get(called, [])
        for place, (one, other) in enumerate(zip(node.args, node.args[1:], strict=False)):
            differ = len(kinds) > place + 1 and kinds[place] != kinds[place + 1]
            if differ and "Any" not in kinds and one.lineno == other.end_lineno:
                texts = ast.unparse(one), ast.unparse(other)
                self._add("order", one, ", ".join(texts), ", ".join(texts[::-1]))

    def _misspell_end(self, kind: str, node: ast.Attribute) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        at = ast.Name(lineno=node.end_lineno)
        self._misspell(kind, at, node.attr, node.end_col_offset - len(node.attr))

    def _misspell(self, kind: str, node: ast.AST, name: str, column: int) -> None:
        """Exchange two letters of the name, as fingers do."""
        pairs = [at for at in range(len(name) - 1) if name[at] != name[at + 1]]
        if len(name) < 4 or name.startswith("__") or not pairs:
            return
        at = self._chance.choice(pairs)
        new = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
        if new not in self._known:
            self._add(kind, node, name, new, column=column)

    def _add(
        self,
        kind: str,
        node: ast.AST,
        old: str,
        new: str,
        column: int | None = None,
    ) -> None:
        line: int = node.lineno  # type: ignore[attr-defined]
        place: int = node.col_offset if column is None else column  # type: ignore[attr-defined]
        typo = Typo(kind, line, place, old, new)
        if self._lines[line - 1][place:].startswith(old):  # not where text is no ASCII
            self.found.append(typo)


def typos_of(text: str, chance: random.Random) -> dict[str, list[Typo]]:
    """Give the possible typos of a file by their kinds."""
    sites = Sites(text, chance)
    sites.visit(ast.parse(text))
    found: dict[str, list[Typo]] = {}
    for typo in sites.found:
        found.setdefault(typo.kind, []).append(typo)
    return found


def choose(root: Path, folders: list[str], count: int, seed: int) -> list[Planted]:
    """Choose typos in turn of the folders, each in another file, and of kinds by chance."""
    chance = random.Random(seed)
    files = [sorted(path.relative_to(root) for path in (root / f).rglob("*.py")) for f in folders]
    for each in files:
        chance.shuffle(each)
    planted: list[Planted] = []
    while len(planted) < count and any(files):
        for each in files:
            if each and len(planted) < count:
                file = each.pop()
                kinds = typos_of((root / file).read_text(), chance)
                if kinds:
                    kind = chance.choice(sorted(kinds))
                    planted.append(Planted(file, chance.choice(kinds[kind])))
    return planted


def plant(root: Path, planted: Planted) -> None:
    """Write the typo into the file."""
    file, typo = root / planted.file, planted.typo
    lines = file.read_text().splitlines(keepends=True)
    line = lines[typo.line - 1]
    end = typo.column + len(typo.old)
    assert line[typo.column : end] == typo.old
    lines[typo.line - 1] = line[: typo.column] + typo.new + line[end:]
    file.write_text("".join(lines))


def named_by_mypy(root: Path) -> Callable[[Planted], bool]:
    """Run mypy in the folder; give what tells whether it has named a typo."""
    command = [sys.executable, "-P", "-m", "mypy", "--no-error-summary", "--no-pretty"]
    run = subprocess.run(
        command, cwd=root, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if run.returncode not in (0, 1):
        raise SystemExit(f"mypy cannot run: {run.stdout}{run.stderr}")
    files = set(re.findall(r"^(\S+?):\d+: error:", run.stdout, re.MULTILINE))
    return lambda planted: str(planted.file) in files


def copy(place: Path) -> Path:
    """Copy what mypy looks at, with what it knows of it."""
    for name in ("torshrun", "torsh_runtime", "benchmarks", "tests", "stubs", ".mypy_cache"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, place / name)
    shutil.copy2(ROOT / "pyproject.toml", place)
    return place


def main() -> int:
    """Plant, check and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="typos-") as folder:
        root = copy(Path(folder))
        planted = choose(root, list(given.folders), given.count, given.seed)
        for each in planted:
            plant(root, each)
        is_named = named_by_mypy(root)
        unread = {line.partition(":")[0] for line in attributes.never_read(root)}
    named = [each for each in planted if is_named(each)]
    for each in planted:
        missed = "unread    " if str(each.file) in unread else "NOT NAMED "
        print("named     " if each in named else missed, each)
    score_of = Counter("/".join(each.file.parts[:3]) for each in named)
    for package, count in sorted(Counter("/".join(e.file.parts[:3]) for e in planted).items()):
        print(f"{package}: {score_of[package]} of {count}")
    print(f"{len(named)} of {len(planted)} typos are named, with seed {given.seed}")
    return 0 if planted and len(named) >= LEAST * len(planted) else 1


if __name__ == "__main__":
    sys.exit(main())
