"""Scripts for torshrun, run by ranks that are forked: they need not load torch anew."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from support.forked import Raised, run_forked
from support.ports import free_address

_SEED = 67280421310721
"""The one that torch begins with in a new process."""


def printed(script: Path, ranks: int, loads: Sequence[str] = ()) -> str:
    """Run the script on so many ranks, and return what they print, as torshrun shows it. torch and
    these modules are loaded before the ranks part.
    """
    for name in ("torch._dynamo", *loads):  # which optimizers load, too
        importlib.import_module(name)
    address, port = free_address().removeprefix("tcp://").rsplit(":", 1)

    def be_rank(rank: int) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port}
        os.chdir(script.parent)
        sys.argv = [script.name]
        sys.modules["torch"].manual_seed(_SEED)  # tests before this one have drawn numbers
        with _output_of(script, rank).open("w") as file, redirect_stdout(file):
            runpy.run_path(str(script), run_name="__main__")

    for rank, result in enumerate(run_forked(ranks, be_rank)):
        assert not isinstance(result, Raised), f"rank {rank}: {result.error.trace}"  # type: ignore[attr-defined]
    lines = [
        f"[{rank}] {line}"
        for rank in range(ranks)
        for line in _output_of(script, rank).read_text().splitlines(keepends=True)
    ]
    return "".join(lines)


def _output_of(script: Path, rank: int) -> Path:
    return script.with_suffix(f".{rank}.out")
