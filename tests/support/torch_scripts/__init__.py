"""Training scripts as people write them for gloo, and what they print under torshrun."""

from __future__ import annotations

import re
from pathlib import Path

from support.launchers import Bench, Run

SCRIPTS = Path(__file__).parent
SAID = "torsh: groups that ask for gloo are torsh's on CPUs (--torch-backend torsh)"


def found(run: Run, word: str) -> list[str]:
    """The lines of all ranks that begin with a word."""
    assert run.code == 0, run.err
    lines = re.findall(rf"^\[\d+\] ({word} .*)$", run.out, re.MULTILINE)
    return sorted(lines)


def alike(bench: Bench, ranks: int, *script: str, **environ: str) -> list[str]:
    """What the script prints of its losses, which torsh must not change."""
    command = (f"--nproc-per-node={ranks}", "--preload=torch._dynamo", "--standbys=0", *script)
    on_gloo = bench.run("torshrun", *command, environ=environ)
    on_torsh = bench.run("torshrun", "--torch-backend=torsh", *command, environ=environ)
    assert (on_gloo.err.count(SAID), on_torsh.err.count(SAID)) == (0, 1), on_torsh.err
    losses = found(on_torsh, "loss")
    assert losses == found(on_gloo, "loss")
    return losses
