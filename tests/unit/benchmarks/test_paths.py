"""The benchmarks measure the installed package, not a source tree without its compiled part."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def test_benchmarks_put_the_source_tree_behind_what_is_installed() -> None:
    changed = [file for file in BENCHMARKS.glob("*.py") if "sys.path" in file.read_text()]
    assert len(changed) > 20
    in_front = re.compile(r"sys\.path(\[0\] = |\.insert\(|\[:0\]|\[:\] = \[(?!\*sys\.path\[1:\]))")
    found = [file.name for file in changed if in_front.search(file.read_text())]
    assert not found, "these put a directory before the installed packages"


def test_importing_a_benchmark_takes_nothing_from_the_path() -> None:
    unguarded = re.compile(r"^sys\.path\[", re.MULTILINE)
    found = [file.name for file in BENCHMARKS.glob("*.py") if unguarded.search(file.read_text())]
    assert not found, "these change the path of a process that imports them"
