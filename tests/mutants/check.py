"""Runs the tests that are to notice each mutant: `scripts/mutants [--list] [NAME…]`.

A mutant is one place in the source that is broken, found by its text, and what is to notice it:
`tests` for pytest, and `seeds` of the simulator. It is found out when one of them fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = sorted(Path(__file__).parent.glob("*.toml"))
COMPILED = ("torsh_runtime/backends/native/*.so", "torshrun/keeper/torsh-keeper")
LIMIT = 900.0
"""Seconds for one run of tests."""
NOTICED = 1
"""The status with which pytest and the simulator tell that something does not hold."""
TOLD = ("FAILED ", "ERROR ", "seed ")
"""What their lines begin with that tell what it is; a simulator that cannot run has none."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One line of the tables."""

    name: str
    file: str
    text: str
    """What stands there; it must stand there once, or `place` says which one is meant."""
    broken: str
    """What is to stand there instead."""
    place: int = 0
    tests: tuple[str, ...] = ()
    seeds: int = 0

    def commands(self) -> list[list[str]]:
        """What is to notice it, the fastest first."""
        found = []
        if self.tests:
            found.append(["-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *self.tests])
        if self.seeds:
            simulate = ["tests/simulation/run.py", "--quick", "--agents", "5"]
            found.append([*simulate, "--seeds", str(self.seeds)])
        return found


def mutants() -> list[Mutant]:
    rows = [row for table in TABLES for row in tomllib.loads(table.read_text())["mutant"]]
    return [Mutant(**{**row, "tests": tuple(row.get("tests", ()))}) for row in rows]


def broken(source: str, mutant: Mutant) -> str | None:
    """The source with the mutant; None if its text does not stand where it should."""
    parts = source.split(mutant.text)
    count = len(parts) - 1
    if not count or (count > 1 and not mutant.place) or mutant.place > count:
        return None
    at = mutant.place or 1
    return mutant.text.join(parts[:at]) + mutant.broken + mutant.text.join(parts[at:])


def copy_tree(into: Path) -> None:
    """The working tree as it is, and what was compiled of the installed one."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    found = importlib.util.find_spec("torsh_runtime")
    if found is None or found.origin is None:
        sys.exit("torsh_runtime is not installed here: run scripts/mutants, which installs it")
    site = Path(found.origin).parents[1]
    for pattern in COMPILED:
        for file in site.glob(pattern):
            shutil.copy2(file, into / file.relative_to(site))


def run(tree: Path, command: list[str]) -> tuple[int, str]:
    """The exit status of Python with these arguments, in that tree and with its modules, and the
    first line of what does not hold there.
    """
    env = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT,
    )
    told = (line for line in done.stdout.splitlines() if line.startswith(TOLD))
    return done.returncode, next(told, "")


def judge(tree: Path, mutant: Mutant) -> tuple[bool, str]:
    """Whether it was noticed, and by what or why not."""
    file = tree / mutant.file
    source = file.read_text() if file.exists() else ""
    changed = broken(source, mutant)
    if changed is None:
        return False, f"its text does not stand in {mutant.file} as the table says"
    file.write_text(changed)
    try:
        codes = []
        for command in mutant.commands():
            code, told = run(tree, command)
            if code == NOTICED and told:
                return True, f"noticed: {told[:120]}"
            codes.append(code)
    except subprocess.TimeoutExpired:
        return True, "noticed: nothing ends any more"
    finally:
        file.write_text(source)
    return False, f"the tests cannot run: {codes}" if any(codes) else "SURVIVED"


def unsound(tree: Path, chosen: list[Mutant]) -> str:
    """What fails where nothing is broken, and so would notice nothing; "" if nothing does."""
    tests = tuple(sorted({test for mutant in chosen for test in mutant.tests}))
    seeds = max((mutant.seeds for mutant in chosen), default=0)
    whole = Mutant(name="", file="", text="", broken="", tests=tests, seeds=seeds)
    for command in whole.commands():
        code, told = run(tree, command)
        if code != 0:
            return told or f"{' '.join(command)} ends with {code}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="only their names, and lost texts")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_args()
    chosen = [
        mutant
        for mutant in mutants()
        if not options.names or any(part in mutant.name for part in options.names)
    ]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        if options.list:
            return show(tree, chosen)
        if wrong := unsound(tree, chosen):
            print(f"this fails where nothing is broken: {wrong}")
            return 1
        return check(tree, chosen)


def show(tree: Path, chosen: list[Mutant]) -> int:
    lost = 0
    for mutant in chosen:
        file = tree / mutant.file
        found = file.exists() and broken(file.read_text(), mutant) is not None
        lost += not found
        print(f"{mutant.name}{'' if found else ': its text is not found'}")
    return int(lost > 0)


def check(tree: Path, chosen: list[Mutant]) -> int:
    failed = 0
    for mutant in chosen:
        begun = time.monotonic()
        noticed, how = judge(tree, mutant)
        failed += not noticed
        print(f"{mutant.name} ({time.monotonic() - begun:.0f} s)\n    {how}", flush=True)
    print(f"{len(chosen)} mutants, {failed} of them not noticed or not found")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
