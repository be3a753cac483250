"""Starts the peers of `benchmarks/recovery.py`."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import UnavailableError
from benchmarks.processes import Program, RunError, run, wait_until
from benchmarks.recovery_jobs import PATIENCE, Figures, Training, losses

HERE = Path(__file__).resolve().parent
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Variable by which each start has a store of its own: in torchrun's, Gloo finds the addresses of
workers that have ended."""
MOST_FAILURES = 10
"""Number of restarts that a kill may cost: workers may fail to meet in the first of them."""
ENVIRON = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "GLOO_SOCKET_IFNAME": "lo"}


class Peer(NamedTuple):
    """Describes how a peer is found and measured."""

    probe: str
    """Python that prints the version and fails where the peer cannot be used."""
    measure: Callable[[str, Path, int, int, int], Figures]
    """Runs it by an interpreter in a folder: workers, kills, and the width of the model."""


def measured(
    peer: Peer, python: str, folder: Path, workers: int, kills: int, width: int
) -> tuple[str, Figures]:
    """Return the peer's version and what was measured.

    Raises UnavailableError where it is not installed, and RunError if it does not go on.
    """
    try:
        version = run(Program([python, "-c", peer.probe], folder, ENVIRON), timeout=PATIENCE)
    except (RunError, OSError) as error:
        raise UnavailableError(str(error).splitlines()[-1]) from None
    return version.strip().splitlines()[-1], peer.measure(python, folder, workers, kills, width)


def torchft(python: str, folder: Path, workers: int, kills: int, width: int) -> Figures:
    """Measure TorchFT, started as its README says: a lighthouse, and a torchrun for each rank."""
    lighthouse = str(Path(python).with_name("torchft_lighthouse"))
    options = ["--bind", "[::]:0", "--min_replicas", "1", "--quorum_tick_ms", "100"]
    with Training(folder, workers) as training:
        training.start(
            [[lighthouse, *options, "--join_timeout_ms", "10000"]], {**ENVIRON, "RUST_LOG": "info"}
        )
        address = re.compile(r"Lighthouse listening on: (\S+)")
        if not wait_until(lambda: bool(address.search(training.said())), PATIENCE):
            raise RunError(f"the lighthouse does not start: {training.said()[-2000:]}")
        found = address.search(training.said())
        assert found is not None
        commands = [
            [*torchrun(python, 1, kills), str(HERE / "recovery_torchft.py"), *map(str, place)]
            for place in zip(itertools.repeat(width), range(workers), itertools.repeat(workers))
        ]
        training.start(commands, {**ENVIRON, "TORCHFT_LIGHTHOUSE": found[1]})
        return losses(training, workers, kills)


def gloo(python: str, folder: Path, workers: int, kills: int, width: int) -> Figures:
    """Measure Gloo with torch's reconfigure functions and an agent written for it."""
    command = [python, str(HERE / "recovery_gloo.py"), str(width), str(workers)]
    with Training(folder, workers) as training:
        return losses(training.start([command], ENVIRON), workers, kills)


def restarting(python: str, folder: Path, workers: int, kills: int, width: int) -> Figures:
    """Measure torchrun, which restarts all workers, with a checkpoint of each step in memory."""
    kept = Path("/dev/shm") / f"recovery-benchmark-{os.getpid()}-{time.monotonic_ns()}"
    script = [str(HERE / "recovery_torchrun.py"), str(width), str(kept)]
    try:
        with Training(folder, workers) as training:
            command = [*torchrun(python, workers, kills), *script]
            training.start([command], {**ENVIRON, **OWN_STORE})
            return losses(training, workers, kills, restarts=workers)
    finally:
        for path in (kept, kept.with_name(f"{kept.name}.new")):
            path.unlink(missing_ok=True)


def torchrun(python: str, workers: int, restarts: int) -> list[str]:
    """Return torch's launcher with options for a job on this node."""
    options = [f"--nproc-per-node={workers}", f"--max-restarts={MOST_FAILURES * restarts}"]
    return [python, "-m", "torch.distributed.run", "--standalone", "--nnodes=1", *options]


ALL: Mapping[str, Peer] = {
    "torchft": Peer(
        "import torchft, importlib.metadata as m; print('torchft', m.version('torchft'))", torchft
    ),
    "gloo": Peer(
        "import torch; torch.distributed._reconfigure; print('torch', torch.__version__)", gloo
    ),
    "torchrun": Peer("import torch; print('torch', torch.__version__)", restarting),
}
