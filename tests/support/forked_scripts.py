"""Scripts for torshrun, run by ranks that are forked: they need not load torch anew."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
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
    outputs = printed_by_ranks(script, ranks, folder=script.parent, loads=("torch._dynamo", *loads))
    lines = [
        f"[{rank}] {line}"
        for rank, output in enumerate(outputs)
        for line in output.splitlines(keepends=True)
    ]
    return "".join(lines)


def printed_by_ranks(
    script: Path,
    ranks: int,
    *argv: str,
    folder: Path,
    loads: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> list[str]:
    """What each of so many ranks prints that run the script with these arguments in the folder, and
    without an agent. These modules are loaded before the ranks part.
    """
    for name in loads:
        importlib.import_module(name)
    address, port = free_address().removeprefix("tcp://").rsplit(":", 1)
    files = [folder / f"{script.stem}.{rank}.out" for rank in range(ranks)]

    def be_rank(rank: int) -> None:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port, **(environ or {})}
        os.chdir(folder)
        sys.argv = [script.name, *argv]
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(_SEED)  # tests before this one have drawn numbers
        with files[rank].open("w") as file, redirect_stdout(file):
            runpy.run_path(str(script), run_name="__main__")

    for rank, result in enumerate(run_forked(ranks, be_rank)):
        assert not isinstance(result, Raised), f"rank {rank}: {result.error.trace}"  # type: ignore[attr-defined]
    return [file.read_text() for file in files]
