"""Draws schedules: `python -m torsh_runtime.parallel.pipeline draw --help`."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from torsh_runtime.errors import TorshError
from torsh_runtime.parallel.pipeline import builders
from torsh_runtime.parallel.pipeline.drawing import as_text, save_png, summary
from torsh_runtime.parallel.pipeline.files import load_table, save_table
from torsh_runtime.parallel.pipeline.measuring import load_timeline
from torsh_runtime.parallel.pipeline.simulation import Costs, Simulation, simulate
from torsh_runtime.parallel.pipeline.table import Table, check

_SUFFIXES = (".csv", ".json")
_LONGEST = 1e12


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torsh_runtime.parallel.pipeline")
    draw = parser.add_subparsers(required=True, metavar="draw").add_parser(
        "draw", help="show a table as it is simulated, and what was measured beside it"
    )
    add = draw.add_argument
    add("table", help=f"{', '.join(builders.NAMES)}, with +1 for more ahead, or a .csv or .json")
    add("--ranks", type=_count, default=4, help="of a table by name; default: 4")
    add("--stages-per-rank", type=_count, help="default: 2 of interleaved and zbv, else 1")
    add("--microbatches", type=_count, default=8, help="of a table by name; default: 8")
    for name in ("forward", "input", "weight"):
        add(f"--{name}", type=_time, default=1.0, help="what such a step takes; default: 1")
    add("--transfer", type=_time, default=0.0, help="what a message takes; default: 0")
    add("--measured", type=Path, help="a file of save_timeline(), to be drawn beside it")
    add("--width", type=int, default=shutil.get_terminal_size().columns, help="of the picture")
    add("--png", type=Path, help="write a picture there; it takes matplotlib")
    add("--save", type=_table_file, help="write the table there, as .csv or .json")
    return parser.parse_args(arguments)


def _count(text: str) -> int:
    """From 1 on."""
    found = int(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text}: 1 or more")
    return found


def _time(text: str) -> float:
    """From 0 to what many steps can add up to."""
    found = float(text)
    if not 0 <= found <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text}: 0 to {_LONGEST:g}")
    return found


def _table_file(text: str) -> Path:
    """One that load_table() reads."""
    if not text.endswith(_SUFFIXES):
        raise argparse.ArgumentTypeError(f"{text}: a name that ends in .csv or .json")
    return Path(text)


def _table(options: argparse.Namespace) -> Table:
    name = options.table
    if name.endswith(_SUFFIXES):
        return load_table(name)
    each = options.stages_per_rank or (2 if name in ("interleaved", "zbv") else 1)
    place = builders.vee if name == "zbv" else builders.loop
    return builders.named(name, place(each * options.ranks, options.ranks), options.microbatches)


def _runs(options: argparse.Namespace) -> list[tuple[str, Simulation]]:
    table = _table(options)
    check(table)
    if options.save is not None:
        save_table(table, options.save)
    costs = Costs(options.forward, options.input, options.weight, transfer=options.transfer)
    runs = [(f"{table.name}, simulated", simulate(table, costs))]
    if options.measured is not None:
        timeline = load_timeline(options.measured)
        runs.append((f"{timeline.table.name}, measured", timeline))
    return runs


def main(arguments: Sequence[str] | None = None) -> int:
    """The command's exit status."""
    options = _parse(arguments)
    try:
        runs = _runs(options)
        for title, found in runs:
            picture = as_text(found, max(options.width - 6, 10))
            sys.stdout.write(f"{title}: {summary(found)}\n{picture}\n")
        if options.png is not None:
            save_png(runs, options.png)
    except (TorshError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
