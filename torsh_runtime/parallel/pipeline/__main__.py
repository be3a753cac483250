"""Draws schedules: `python -m torsh_runtime.parallel.pipeline draw --help`."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from torsh_runtime.errors import TorshError
from torsh_runtime.parallel.pipeline import builders
from torsh_runtime.parallel.pipeline.drawing import as_text, save_png, summary
from torsh_runtime.parallel.pipeline.files import load_table, save_table
from torsh_runtime.parallel.pipeline.measuring import load_timeline
from torsh_runtime.parallel.pipeline.simulation import Costs, Simulation, simulate
from torsh_runtime.parallel.pipeline.table import Table, check

_SUFFIXES = (".csv", ".json")
_LONGEST = 1e12


def _time(text: str) -> float:
    """Read a time, from 0 to what many steps can add up to; nan is none."""
    found = float(text)
    if not 0 <= found <= _LONGEST:
        raise click.BadParameter(f"{text}: 0 to {_LONGEST:g}")
    return found


def _table_file(text: str) -> Path:
    """Read a name that load_table() takes."""
    if not text.endswith(_SUFFIXES):
        raise click.BadParameter(f"{text}: a name that ends in .csv or .json")
    return Path(text)


class _Options(NamedTuple):
    """Holds what the command was given besides how it draws."""

    table: str
    ranks: int
    stages_per_rank: int | None
    microbatches: int
    forward: float
    input: float
    weight: float
    transfer: float
    measured: Path | None
    save: Path | None


_COUNT = click.IntRange(min=1)
_SHOWN = partial(click.option, show_default=True)
_STEP = partial(_SHOWN, type=_time, metavar="TIME")


@click.group()
def main() -> None:
    """Draw schedules of pipelines."""


@main.command(epilog=f"Names of tables: {', '.join(builders.NAMES)}.")
@click.argument("table")
@_SHOWN("--ranks", type=_COUNT, default=4, help="Of a table by name.")
@click.option("--stages-per-rank", type=_COUNT, help="Default: 2 of interleaved and zbv, else 1.")
@_SHOWN("--microbatches", type=_COUNT, default=8, help="Of a table by name.")
@_STEP("--forward", default=1.0, help="What a forward step takes.")
@_STEP("--input", default=1.0, help="What a step for the input takes.")
@_STEP("--weight", default=1.0, help="What a step for the weights takes.")
@_STEP("--transfer", default=0.0, help="What a message takes.")
@click.option("--measured", type=Path, help="A file of save_timeline(), to be drawn beside it.")
@click.option("--width", type=int, help="Of the picture; default: the terminal's.")
@click.option("--png", type=Path, help="Write a picture there; it takes matplotlib.")
@click.option(
    "--save", type=_table_file, metavar="FILE", help="Write the table there, as .csv or .json."
)
def draw(width: int | None, png: Path | None, **options: Any) -> None:
    """Show a table as it is simulated, and what was measured beside it.

    TABLE is a name, with +1 for more ahead, or a .csv or .json.
    """
    try:
        runs = _runs(_Options(**options))
        for title, found in runs:
            columns = shutil.get_terminal_size().columns if width is None else width
            picture = as_text(found, max(columns - 6, 10))
            click.echo(f"{title}: {summary(found)}\n{picture}")
        if png is not None:
            save_png(runs, png)
    except (TorshError, OSError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)


def _table(options: _Options) -> Table:
    name = options.table
    if name.endswith(_SUFFIXES):
        return load_table(name)
    each = options.stages_per_rank or (2 if name in ("interleaved", "zbv") else 1)
    place = builders.vee if name == "zbv" else builders.loop
    return builders.named(name, place(each * options.ranks, options.ranks), options.microbatches)


def _runs(options: _Options) -> list[tuple[str, Simulation]]:
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


if __name__ == "__main__":
    main()
