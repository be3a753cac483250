"""Compares calls of functions in other processes with torch's RPC.

    python benchmarks/rpc.py --help

Compares ours with TensorPipe (torch.distributed.rpc), multiprocessing.connection and our own send
and recv, with two ranks of each in turns: calls of an empty function, after a pause, with torch
tensors and numpy arrays, and many at once; also between two network namespaces, which needs root.
Then it measures the growth of memory over many calls, and how others notice that one of four is
killed amid calls.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import session
from benchmarks.bars import Check, of_row
from benchmarks.namespaces import INTERFACE, Cable, cable
from benchmarks.peers import GLOO, HERE, ONE_THREAD, SPAWN, Peer, UnavailableError
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, run
from benchmarks.rounds import Rounds, Start, say
from benchmarks.rpc_libraries import (
    ARRAY,
    BURST,
    CALL,
    FAR,
    FUTURES,
    IDLE,
    NOTHING,
    TENSOR,
    WINDOW,
)
from benchmarks.samples import OURS, Case, Row
from benchmarks.sizes import format_size
from benchmarks.table import MISSING, microseconds, ratio, render

TENSORPIPE, CONNECTION, SEND = "tensorpipe", "connection", "send"
_MI = 2**20
_KINDS = {
    OURS: (NOTHING, FUTURES, ARRAY, TENSOR, FAR),
    TENSORPIPE: (NOTHING, FUTURES, ARRAY, TENSOR),
    CONNECTION: (NOTHING, ARRAY),
    SEND: (NOTHING, ARRAY, TENSOR, FAR),
}
"""Kinds of arguments that can be measured, by library."""
_BARS: Mapping[tuple[str, str, int], Mapping[str, float]] = {
    (CALL, NOTHING, 0): {TENSORPIPE: 0.15, CONNECTION: 1.0},
    (IDLE, NOTHING, 0): {TENSORPIPE: 0.5},
    (CALL, TENSOR, _MI): {TENSORPIPE: 0.3},
    (CALL, TENSOR, 64 * _MI): {TENSORPIPE: 0.5},
    (CALL, ARRAY, _MI): {TENSORPIPE: 0.08},
    (CALL, ARRAY, 64 * _MI): {TENSORPIPE: 0.03},
    (WINDOW, FUTURES, 0): {TENSORPIPE: 0.125},
    (BURST, FUTURES, 0): {TENSORPIPE: 0.125},
    (CALL, FAR, 64 * _MI): {SEND: 1.2},
}
"""Largest ratio to a peer's time, by operation, kind of argument and size."""
_GROWTH_KIB, _TOLD, _SHUTDOWN = 1024, 0.1, 1.0
_ENV = {"TORSH_SECRET": "00" * 16}
_WORKER, _DEATHS = HERE / "rpc_worker.py", HERE / "rpc_deaths.py"
_ITERATIONS = (3, 20_000)
_WHAT = ("calls", "network", "memory", "deaths")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--what", type=lambda text: session.several(text, _WHAT), default=_WHAT)
    add("--here", action="store_true", help="use this interpreter's own torch")
    add("--peers", type=lambda text: session.several(text, tuple(_KINDS)), default=tuple(_KINDS))
    add("--calls", type=session.positive, default=100_000, help="for memory; default: 100000")
    add("--deaths", type=session.positive, default=10, help="default: 10")
    session.add_options(parser, seconds=1.0)
    options = session.with_defaults(parser.parse_args(arguments))
    if options.quick:
        options.calls, options.deaths = min(options.calls, 2_000), min(options.deaths, 2)
    return options


def contenders(options: argparse.Namespace) -> list[Peer]:
    """Return the libraries, which all use the same interpreter with torch."""
    base = replace(
        GLOO, environment=GLOO.name, requirements=() if options.here else GLOO.requirements
    )
    return [
        replace(base, name=name, dtypes=kinds, env={**base.env, **_ENV})
        for name, kinds in _KINDS.items()
        if name in options.peers
    ]


def work(options: argparse.Namespace) -> session.Work:
    """Return the cases, with the sizes of their arguments."""
    sizes = (_MI,) if options.quick else (_MI, 64 * _MI)
    within = [(Case(name, NOTHING), (0,)) for name in (CALL, IDLE)]
    within += [(Case(name, FUTURES), (0,)) for name in (WINDOW, BURST)]
    within += [(Case(CALL, TENSOR), sizes), (Case(CALL, ARRAY), sizes)]
    far = [(Case(CALL, FAR, nodes=2), sizes[-1:])]
    wanted = {"calls": within, "network": far}
    return [each for what in options.what if what in wanted for each in wanted[what]]


def start_on(laid: Cable | None) -> Start:
    """Return a function that starts two ranks: here, or one at each end of this cable."""

    def start(peer: Peer, case: Case, plan: Path) -> Sequence[str]:
        command = [str(SPAWN), "2", str(_WORKER), str(plan)]
        if case.nodes == 1:
            return [peer.python, *command]
        assert laid is not None
        place = ["--namespaces", ",".join(map(str, laid.holders)), "--address", laid.addresses[0]]
        interface = f"TORSH_SOCKET_IFNAME={INTERFACE}"
        return ["env", interface, peer.python, command[0], *place, *command[1:]]

    return start


def report(rows: Sequence[Row], names: Sequence[str]) -> list[Check]:
    """Print a line for each row, and return the checks."""
    if not rows:
        return []
    peers = [name for name in names if name != OURS]
    header = ["what", "with", "bytes", *(f"{name} us" for name in names)]
    header += [*(f"ours/{name}" for name in peers), "state", "runs"]
    print("\nmedian of a call; of many under way: all of them, divided by their number")
    print(render(header, [_line(row, names, peers) for row in rows]))
    return [check for row in rows for check in checks(row, names)]


def _line(row: Row, names: Sequence[str], peers: Sequence[str]) -> list[str]:
    cells = [row.cells.get(name) for name in names]
    return [
        row.case.operation,
        row.case.dtype,
        format_size(row.nbytes),
        *(microseconds(cell.median_us) if cell else MISSING for cell in cells),
        *(ratio(row.ratio(OURS, name)) for name in peers),
        row.state,
        "/".join(str(cell.runs) if cell else "0" for cell in cells),
    ]


def checks(row: Row, names: Sequence[str]) -> list[Check]:
    """Return the checks of this row against the measured peers."""
    wanted = _BARS.get((row.case.operation, row.case.dtype, row.nbytes), {})
    return [
        of_row(
            f"{row.case.operation}, {row.case.dtype}",
            row,
            f"ours/{name}",
            row.ratio(OURS, name),
            limit,
            at_most=True,
        )
        for name, limit in wanted.items()
        if name in names
    ]


def memory(options: argparse.Namespace) -> list[Check]:
    """Print how much both processes grow over many calls, and return the checks."""
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as name:
        plan = Path(name) / "plan.json"
        plan.write_text(json.dumps({"library": OURS, "calls": options.calls, **_site()}))
        command = [sys.executable, str(SPAWN), "2", str(_WORKER), str(plan)]
        run(Program(command, Path(name), {**ONE_THREAD, **_ENV}), options.timeout)
        grown = json.loads((Path(name) / "rank-0.json").read_text())["figures"]
    print(f"\nKiB by which memory grew from the first tenth of {options.calls} calls to the last")
    print(render(list(grown), [[str(value) for value in grown.values()]]))
    return [
        Check(f"KiB by which the {who} grew", value, _GROWTH_KIB, at_most=True, bar="memory")
        for who, value in grown.items()
    ]


def deaths(options: argparse.Namespace) -> list[Check]:
    """Print how others noticed deaths of one of four, and return the checks."""
    command = [sys.executable, str(_DEATHS), str(options.deaths)]
    printed = run(Program(command, HERE, {**ONE_THREAD, **_ENV}), options.timeout)
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    bars = {"told": _TOLD, "shutdown": _SHUTDOWN}
    rows, checked = [], []
    for what, limit in bars.items():
        times = [each[what] for each in found if each[what] is not None]
        rows.append([what, f"{1e3 * statistics.median(times):.1f}", f"{1e3 * max(times):.1f}"])
        checked.append(Check(f"{what}, s", max(times), limit, at_most=True, bar="deaths"))
    wrong = [text for each in found for text in each["wrong"]]
    right = sum(each["right"] for each in found)
    print(f"\n{len(found)} deaths of one of 4 workers amid {right} calls that were right")
    print(render(["ms until the others are", "median", "most"], rows))
    print("\n".join(wrong[:10]))
    checked.append(Check("calls that were wrong", len(wrong), 0, at_most=True, bar="deaths"))
    return checked


def measure(options: argparse.Namespace) -> int:
    """Measure what the options ask for, and return the exit status."""
    apart = {"memory": memory, "deaths": deaths}
    found = [check for what in options.what if what in apart for check in apart[what](options)]
    peers, versions = session.available(contenders(options))
    names = [peer.name for peer in peers]
    with contextlib.ExitStack() as stack:
        laid = stack.enter_context(cable()) if "network" in options.what else None
        rounds = Rounds(options, peers, start_on(laid), _ITERATIONS, lambda case: _site())
        return session.conduct(
            rounds, work(options), lambda rows: [*report(rows, names), *found], versions
        )


def _site() -> dict[str, Any]:
    """Return the location of torsh_runtime."""
    return {"site": sysconfig.get_paths()["purelib"]}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    try:
        return measure(options)
    except (UnavailableError, RunError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
