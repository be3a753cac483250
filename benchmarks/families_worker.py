"""Runs one rank of benchmarks/families.py: trains cut and whole models, and compares them."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import torsh_runtime as tr
from benchmarks.family_columns import COLUMNS, NOT_TRIED, REFUSED, RIGHT, WRONG
from benchmarks.family_models import FAMILIES, hf
from benchmarks.family_training import SENSELESS


def cell(name: str, title: str) -> str:
    """Return the verdict of one family in one column."""
    column = COLUMNS[title]
    if column.run is None:
        return NOT_TRIED
    if not FAMILIES[name].is_known:
        return SENSELESS
    try:
        said = column.run(name, column.mesh())
    except tr.ConfigError as error:
        return f"{REFUSED}: {error}"
    except Exception as error:  # an error is a verdict, too
        said = f"{type(error).__name__}: {error}"
    return said if said == SENSELESS else f"{WRONG}: {said}" if said else RIGHT


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", type=lambda text: text.split(","), required=True)
    parser.add_argument("--columns", type=lambda text: text.split(","), required=True)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    hf.logging.set_verbosity_error()
    torch.set_num_threads(1)
    tr.init_process_group()
    for name in options.only:
        for column in options.columns:
            every: list[Any] = [None] * tr.get_world_size()
            tr.all_gather_object(every, cell(name, column))
            said = next((each for each in every if each.startswith(WRONG)), every[0])
            if tr.get_rank() == 0:
                with options.to.open("a") as file:
                    print(json.dumps([name, column, said]), file=file)
    tr.destroy_process_group()


if __name__ == "__main__":
    main()
