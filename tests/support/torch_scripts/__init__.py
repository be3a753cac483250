"""Training scripts as people write them for gloo, and what they print under torshrun."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from support.forked_scripts import printed_by_ranks
from support.launchers import Bench, Run

SCRIPTS = Path(__file__).parent
ONCE = ("--preload=torch._dynamo", "--standbys=0")
"""Workers are forks of a process that has loaded torch."""
SAID = "torsh: groups that ask for gloo are torsh's on CPUs (--torch-backend torsh)"


def found(run: Run, word: str) -> list[str]:
    """The lines of all ranks that begin with a word."""
    assert run.code == 0, run.err
    lines = re.findall(rf"^\[\d+\] ({word} .*)$", run.out, re.MULTILINE)
    return sorted(lines)


def alike_here(
    bench: Bench, ranks: int, script: Path, *argv: str, loads: Sequence[str] = (), **environ: str
) -> list[str]:
    """As alike(), but gloo's ranks are forked here, where torch and these modules are loaded."""
    folder = bench.folder / f"{script.stem} on gloo"
    folder.mkdir(exist_ok=True)
    every = ("torch._dynamo", *loads)
    on_gloo = printed_by_ranks(script, ranks, *argv, folder=folder, loads=every, environ=environ)
    command = (f"--nproc-per-node={ranks}", *ONCE, str(script), *argv)
    on_torsh = bench.run("torshrun", "--torch-backend=torsh", *command, environ=environ)
    assert on_torsh.err.count(SAID) == 1, on_torsh.err
    losses = found(on_torsh, "loss")
    assert losses == sorted(re.findall("^loss .*$", "\n".join(on_gloo), re.MULTILINE))
    return losses


def alike(bench: Bench, ranks: int, *script: str, **environ: str) -> list[str]:
    """What the script prints of its losses, which torsh must not change."""
    command = (f"--nproc-per-node={ranks}", *ONCE, *script)
    on_gloo = bench.run("torshrun", *command, environ=environ)
    on_torsh = bench.run("torshrun", "--torch-backend=torsh", *command, environ=environ)
    assert (on_gloo.err.count(SAID), on_torsh.err.count(SAID)) == (0, 1), on_torsh.err
    losses = found(on_torsh, "loss")
    assert losses == found(on_gloo, "loss")
    return losses
