"""Measures whether a slow rank is found, with the right cause.

    python benchmarks/stragglers.py --bars

One of 4 ranks, or of 2 where processors matter, becomes 1.3 times as slow by its data, a CPU quota,
a rival process on its processor, or its link to the others. It must be found within 30 steps, with
the right cause. The predicted time of steps without it is compared with the time before it was
slow. Runs without a slow rank must raise no alarm. Quotas and links need root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import DEVNULL
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check, all_pass
from benchmarks.namespaces import INTERFACE, Star, star
from benchmarks.peers import ONE_THREAD, UnavailableError
from benchmarks.processes import Program, interrupt_on_term, run, started
from benchmarks.spawn import entering, free_port
from benchmarks.stragglers_worker import SLOW_FROM
from benchmarks.table import render

WORKER = Path(__file__).with_name("stragglers_worker.py")
WITHIN = 30
"""Number of steps within which it must be found."""
_RIGHT_RANK, _RIGHT_CAUSE, _POINTS = 19 / 20, 17 / 20, 0.03
SECRET = os.urandom(32).hex()
_THRESHOLD = "1.15"
_TIMEOUT = 60.0
_PERIOD, _QUOTA = 20_000, 11_000  # microseconds
_CPU = Path("/sys/fs/cgroup/cpu")


@dataclass(frozen=True, slots=True)
class Scene:
    """Describes a way to slow a rank down; "" for none."""

    cause: str
    ranks: int = 4
    nodes: int = 1
    uses_processor: bool = False
    elements: int = 1 << 12
    told: str = ""
    """The cause that must be reported."""


SCENES = {
    "data": Scene("data", told="section data"),
    "quota": Scene("quota", ranks=2, uses_processor=True, told="quota"),
    "rival": Scene("processor", ranks=2, uses_processor=True, told="processor"),
    "link": Scene("link", nodes=4, elements=1 << 18, told="link"),
    "healthy": Scene(""),
    "computing": Scene("", ranks=2, uses_processor=True),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds the result of one run."""

    rank: int
    found: Mapping[str, Any] | None
    """The first straggler that was reported."""
    truth: float
    """Factor by which steps became slower."""
    whatif: float | None

    @property
    def is_rank_right(self) -> bool:
        found = self.found
        is_it = found is not None and found["ranks"] == [self.rank]
        return is_it and SLOW_FROM <= found["step"] < SLOW_FROM + WITHIN  # type: ignore[index]


@contextlib.contextmanager
def quota_group() -> Iterator[str]:
    """Create a control group with a quota. Raises UnavailableError if that is not possible."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":", 2)[2] for line in lines if ":cpu:" in line), "/")
    path = Path(f"{_CPU}{own}") / f"torsh-benchmark-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        raise UnavailableError(f"no CPU quota: {path}: {error.strerror}") from None
    try:
        (path / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (path / "cpu.cfs_quota_us").write_text(str(_QUOTA))
        yield str(path)
    finally:
        path.rmdir()


def conduct(scene: Scene, rank: int, laid: Star | None) -> Outcome:
    """Run a scene in which `rank` is slow."""
    plan = {
        "cause": scene.cause,
        "rank": rank,
        "uses_processor": scene.uses_processor,
        "processors": len(os.sched_getaffinity(0)),
        "elements": scene.elements,
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stragglers-")))
        env = {**ONE_THREAD}
        if scene.cause == "quota":
            env["QUOTA_GROUP"] = stack.enter_context(quota_group())
        result = folder / "result.json"
        words = [str(WORKER), json.dumps(plan), str(result)]
        wanted = commands(scene, words, laid)
        programs = [Program(command, folder, {**env, **more}) for command, more in wanted]
        others = [started(each, stdout=DEVNULL, stderr=DEVNULL) for each in programs[1:]]
        for each in others:
            stack.enter_context(each)
        run(programs[0], _TIMEOUT)
        told = json.loads(result.read_text())
        found, whatif = first_found(folder), told["whatif"]
        if scene.cause == "link" and found:  # no rank's own work is slow
            whatif = found["speedup"]
        return Outcome(rank, found, told["truth"], whatif)


def commands(
    scene: Scene, words: Sequence[str], laid: Star | None
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield the command of each node, and its additional environment."""
    torshrun = [sys.executable, "-m", "torshrun", "--straggler-threshold", _THRESHOLD]
    if laid is None:
        yield [*torshrun, "--nproc-per-node", str(scene.ranks), "--events", "events_0", *words], {}
        return
    port = str(free_port())
    for place, holder in enumerate(laid.holders):
        meets = ["--nnodes", str(scene.nodes), "--node-rank", str(place), "--rdzv-conf", "ttl=1"]
        meets += ["--master-addr", laid.addresses[0], "--master-port", port]
        command = [*entering(holder), *torshrun, *meets, "--events", f"events_{place}", *words]
        yield command, {"TORSH_SOCKET_IFNAME": INTERFACE, "TORSH_SECRET": SECRET}


def first_found(folder: Path) -> Mapping[str, Any] | None:
    """Return the first straggler that an agent reported."""
    lines = [line for file in folder.glob("events_*") for line in file.read_text().splitlines()]
    events = [json.loads(line) for line in lines]
    found = [event for event in events if event["event"] == "straggler_found"]
    return min(found, key=lambda event: event["time"], default=None)


def report(name: str, scene: Scene, outcomes: Sequence[Outcome]) -> tuple[list[str], list[Check]]:
    """Return a line of the table, and the checks."""
    count = len(outcomes)
    alarms = sum(each.found is not None for each in outcomes)
    if not scene.cause:
        line = [name, str(count), f"{alarms} alarms", "", "", "", ""]
        return line, [Check(f"{name}: alarms", alarms, 0, at_most=True, bar="stragglers")]
    ranks = sum(each.is_rank_right for each in outcomes)
    causes = sum(bool(each.found) and each.found["cause"] == scene.told for each in outcomes)  # type: ignore[index]
    steps = [each.found["step"] - SLOW_FROM + 1 for each in outcomes if each.found]
    truth = median(each.truth for each in outcomes)
    # Each run has its own truth: a link slows some runs by a third and others by two thirds.
    errors = [abs(each.whatif - each.truth) for each in outcomes if each.whatif]
    error = median(errors) if errors else None
    line = [
        name,
        str(count),
        f"{ranks}",
        f"{causes}",
        f"{median(steps):.0f}" if steps else "-",
        f"{truth:.2f}",
        "-" if error is None else f"{error:.3f}",
    ]
    checks = [
        Check(f"{name}: rank right, of {count}", ranks / count, _RIGHT_RANK, bar="stragglers"),
        Check(f"{name}: cause right, of {count}", causes / count, _RIGHT_CAUSE, bar="stragglers"),
    ]
    what = f"{name}: what-if beside the truth"
    return line, [*checks, Check(what, error, _POINTS, at_most=True, bar="what-if")]


def conduct_all(scene: Scene, count: int) -> list[Outcome]:
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            # New for each run, as a slowed link stays slow.
            laid = stack.enter_context(star(scene.nodes)) if scene.nodes > 1 else None
            found.append(conduct(scene, number % scene.ranks, laid))
            say_if_wrong(scene, found[-1])
            stack.pop_all().close()
        return found


def say_if_wrong(scene: Scene, outcome: Outcome) -> None:
    """Print the wrong report, if it was wrong."""
    found = outcome.found
    told = found["text"] if found else "nothing was told"
    if not scene.cause:
        if found:
            print(f"  nobody was slow, but {told}", flush=True)
    elif not outcome.is_rank_right or (found and found["cause"] != scene.told):
        slowed = f"rank {outcome.rank} was slowed by {scene.cause}, steps {outcome.truth:.2f} times"
        print(f"  {slowed}, but {told}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=20, help="runs of each; default: 20")
    parser.add_argument("--only", default=",".join(SCENES), help=f"some of {', '.join(SCENES)}")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is not reached")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    interrupt_on_term()
    rows, checks = [], []
    for name in options.only.split(","):
        try:
            outcomes = conduct_all(SCENES[name], 1 if options.quick else options.count)
        except UnavailableError as error:
            print(f"{name}: {error}")
            checks.append(Check(name, None, 0))
            continue
        line, found = report(name, SCENES[name], outcomes)
        rows.append(line)
        checks += found
        print(" ".join(line), flush=True)
    head = [
        "slowed by",
        "runs",
        "rank right",
        "cause right",
        "found after",
        "slower",
        "what-if off by",
    ]
    print(render(head, rows))
    print("\n".join(map(str, checks)))
    return 0 if all_pass(checks) or not options.bars else 1


if __name__ == "__main__":
    raise SystemExit(main())
