"""Writes the documentation's pictures, or checks with --check that they are up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pictures
import plots
from report import report
from schedules import schedules

FOLDER = Path(__file__).resolve().parent
ALL = (
    pictures.node,
    pictures.round_,
    pictures.mesh,
    pictures.failure,
    pictures.sharding,
    schedules,
    report,
    plots.all_reduce,
    plots.network,
    plots.steps,
    plots.launch,
)


def main() -> int:
    """Do what the command line says, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    check = parser.parse_args().check
    made = {f"{picture.name}.svg": picture.svg() for picture in (draw() for draw in ALL)}
    there = {path.name: path.read_text() for path in FOLDER.glob("*.svg")}
    stale = sorted(name for name in made | there if made.get(name) != there.get(name))
    if check and stale:
        sys.stderr.write(f"not up to date: {', '.join(stale)}; run python docs/pictures/make.py\n")
        return 1
    for name in () if check else stale:
        path = FOLDER / name
        path.write_text(made[name]) if name in made else path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
