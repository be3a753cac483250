"""Finds the limits between algorithms that are fastest on this machine.

    python benchmarks/tune.py --help

Measures all_reduce of the native backend with different limits, and writes the fastest to the file
that the backend reads. Without a job it measures within this node. For the limits between nodes
start it as a job on them, with one worker each; then only those are measured:

    torshrun --nproc-per-node 1 ... benchmarks/tune.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if not __package__:  # torsh_runtime is the installed one, not the source tree beside this folder
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

import torsh_runtime as tr
from benchmarks import machine, session
from benchmarks.peers import ONE_THREAD, OURS
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, run
from benchmarks.sizes import format_size
from benchmarks.table import microseconds, render
from benchmarks.tuning_trials import (
    VARIABLE,
    VERSION,
    Setting,
    Times,
    Trials,
    crossover,
    fastest,
)

DEFAULT_PATH = "~/.config/torsh/tuning.json"
STREAMS = "TORSH_SOCKET_STREAMS"
_KI, _MI = 2**10, 2**20
_WHOLE_SIZES = tuple(_KI << step for step in range(7))
_BLOCKS = tuple(block * _KI for block in (512, 64, 128, 256, 1024, 2048))
"""Sizes of blocks in bytes. The first is kept unless another one is clearly faster."""
_BLOCK_SIZES = (_MI, 8 * _MI, 64 * _MI)
_TREE_SIZES = tuple(_KI << step for step in range(11))
_STREAMS = (2, 1, 4, 8)
_STREAM_SIZES = (4 * _MI, 64 * _MI)
_QUICK_SIZES = 2
_TIMEOUT = 900.0


def whole_limit(trials: Trials, sizes: Sequence[int]) -> int:
    """Return the size up to which every rank should reduce everything by itself."""
    settings = [Setting("shm", {"whole_limit": limit}) for limit in (sizes[-1], 0)]
    found = trials.times(settings, sizes)
    show("whole_limit", dict(zip(("reduced by all", "in blocks"), found, strict=True)))
    return crossover(*found)


def block_bytes(trials: Trials, sizes: Sequence[int], whole: int) -> int:
    """Return the best size of the blocks of large buffers."""
    blocks = [block for block in _BLOCKS if block >= whole]
    settings = [Setting("shm", {"whole_limit": whole, "block_bytes": block}) for block in blocks]
    found = dict(zip(blocks, trials.times(settings, sizes), strict=True))
    show("block_bytes", {format_size(block): times for block, times in found.items()})
    return fastest(found)


def tree(trials: Trials, sizes: Sequence[int], local_ranks: int) -> int:
    """Return the bytes of one rank of a node up to which a tree is better than rings."""
    settings = [Setting("tcp", {"tree": limit}) for limit in (sizes[-1], 0)]
    found = trials.times(settings, sizes)
    show("tree", dict(zip(("tree", "rings"), found, strict=True)))
    return crossover(*found) // local_ranks


def streams(trials: Trials, sizes: Sequence[int]) -> int:
    """Return the best number of data connections for large messages between two ranks."""
    settings = [Setting("tcp", environment={STREAMS: str(number)}) for number in _STREAMS]
    found = dict(zip(_STREAMS, trials.times(settings, sizes), strict=True))
    show(STREAMS, {str(number): times for number, times in found.items()})
    return fastest(found)


def show(what: str, found: Mapping[str, Times]) -> None:
    """Print the times of each choice, in us; only on rank 0."""
    if tr.get_rank():
        return
    sizes = sorted(next(iter(found.values())))
    body = [
        [name, *(microseconds(times[size] * 1e6) for size in sizes)]
        for name, times in found.items()
    ]
    print(f"\n{what}, us by size\n{render(['', *map(format_size, sizes)], body)}", flush=True)


def within_node(trials: Trials, few: int | None) -> dict[str, Any]:
    """Return the file's part about this number of ranks in a node."""
    whole = whole_limit(trials, _WHOLE_SIZES[:few])
    block = block_bytes(trials, _BLOCK_SIZES[:few], whole)
    return {"shm": {str(tr.get_world_size()): {"whole_limit": whole, "block_bytes": block}}}


def between_nodes(trials: Trials, few: int | None) -> dict[str, Any]:
    """Return the file's part about the network. An environment variable sets the connections."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    limit = tree(trials, _TREE_SIZES[:few], local)
    number = streams(trials, _STREAM_SIZES[:few])
    return {"tcp": {"tree": limit}, "environment": {STREAMS: str(number)}}


def be_rank(options: argparse.Namespace) -> int:
    """Run one rank's part. Rank 0 writes the results."""
    world, few = os.environ["WORLD_SIZE"], _QUICK_SIZES if options.quick else None
    measure = within_node if os.environ.get("LOCAL_WORLD_SIZE", world) == world else between_nodes
    with (
        tempfile.TemporaryDirectory(prefix="torsh-tune-") as folder,
        contextlib.closing(Trials(options, Path(folder))) as trials,
    ):
        found = measure(trials, few)
        if tr.get_rank() == 0:
            write(options.output, found)
    return 0


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write the results to the file, and keep those of other numbers of ranks."""
    content = merged(_present(path), found) | {"version": VERSION, "machine": machine.describe()}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(content, indent=1) + "\n")
    fresh.replace(path)
    print(f"\n{path}: {json.dumps(found)}", flush=True)


def merged(known: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known content, updated with the results."""
    return {**known, **found, "shm": {**known.get("shm", {}), **found.get("shm", {})}}


def _present(path: Path) -> dict[str, Any]:
    """Return the file's content; nothing if it does not exist or has another version."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and content.get("version") == VERSION else {}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    output = os.environ.get(VARIABLE) or DEFAULT_PATH
    add("--ranks", type=_ranks, default=_usual_ranks(), help="within this node, such as 2,4,8")
    add("--rounds", type=session.positive, default=7, help="interleaved; default: 7")
    add("--seconds", type=float, default=0.02, help="for each time that is taken; default: 0.02")
    add("--output", type=Path, default=Path(output), help=f"default: ${VARIABLE}, {DEFAULT_PATH}")
    add("--quick", action="store_true", help="little, in one round: shows that it works")
    options = parser.parse_args(arguments)
    try:
        options.output = options.output.expanduser().absolute()
    except RuntimeError:
        parser.error(f"there is no home directory for {options.output}: say --output FILE")
    if options.quick:
        options.rounds, options.seconds = 1, 0.001
    return options


def _ranks(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 2:
        raise argparse.ArgumentTypeError("there is nothing to tune for less than 2 ranks")
    return numbers


def _usual_ranks() -> tuple[int, ...]:
    """Return 2, 4, 8, 16, up to twice the CPUs. Other numbers use the next lower one's limits."""
    cpus = len(os.sched_getaffinity(0))
    return tuple(ranks for ranks in (2, 4, 8, 16) if ranks <= max(2 * cpus, 2))


def launch(options: argparse.Namespace, ranks: int) -> None:
    """Run this script on `ranks` ranks. Raises RunError if that fails."""
    arguments = [
        "--rounds",
        options.rounds,
        "--seconds",
        options.seconds,
        "--output",
        options.output,
    ]
    quick = ["--quick"] if options.quick else []
    cpus = len(os.sched_getaffinity(0))
    command = OURS.command(
        ranks, cpus, [str(Path(__file__).resolve()), *map(str, arguments), *quick]
    )
    print(run(Program(command, Path.cwd(), ONE_THREAD), _TIMEOUT), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if "RANK" in os.environ:
        return be_rank(options)
    interrupt_on_term()
    try:
        for ranks in options.ranks:
            print(f"{ranks} ranks", flush=True)
            launch(options, ranks)
    except RunError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
