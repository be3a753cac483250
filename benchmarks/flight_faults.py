"""Measures how often torshctl explain names the right rank and operation after faults.

    python benchmarks/flight_faults.py --count 100 --bars
    python benchmarks/flight_faults.py --torch 20

Two torshrun agents on this machine run two ranks each. One rank is killed, stopped, runs out of
memory, raises, skips, swaps or mistakes a call, or waits crosswise with another one, or its node's
network is cut. The kind and the place are drawn from --seed. Then `torshctl explain DIR --json` is
asked. --torch does the same to as many jobs of torch's Gloo. Each of their ranks dumps its flight
recorder when its script ends, and the analyser that comes with torch is asked. --bars prints
whether the bars are met.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import bars
from benchmarks.flight_worker import GROUPS, STEPS, Call, plan
from benchmarks.namespaces import Cable, cable
from benchmarks.peers import UnavailableError
from benchmarks.processes import Program, interrupt_on_term, started, wait_until
from benchmarks.spawn import entering, free_port

KINDS = (
    *("kill", "stop", "memory", "exception", "slow"),
    *("skip", "swap", "wrong", "crosswise", "cut"),
)
VARIANTS = {
    "kill": ("before", "inside"),
    "wrong": ("dtype", "size", "reduction", "operation"),
    "crosswise": ("tp", "dp"),
}
HANG = "2"
"""Seconds without progress after which workers count as hanging."""
CONF = "ttl=4,last_call_timeout=0.2,join_timeout=15,close_timeout=5"
BOUND = 60.0
TRIES = 3
MEMORY = Path("/sys/fs/cgroup/memory")
LIMIT = 192 << 20
TORCH_TIMEOUT = 3.0
WORKER = str(Path(__file__).with_name("flight_worker.py"))


@dataclass(frozen=True)
class Fault:
    """Describes a fault of one job, and its place."""

    kind: str
    rank: int
    step: int
    at: int
    variant: str
    seed: int

    @property
    def calls(self) -> list[Call]:
        return plan(self.seed)

    @property
    def culprits(self) -> set[int]:
        """Return the ranks that may be named."""
        if self.kind == "crosswise":
            return {self.rank, self.rank ^ (1 if self.variant == "tp" else 2)}
        return {2, 3} if self.kind == "cut" else {self.rank}


@dataclass
class Outcome:
    """Holds what was reported about a fault."""

    fault: Fault
    rank: bool = False
    operation: bool = False
    records: bool = False
    seconds: float = 0.0
    said: str = ""
    is_struck: bool = True
    notes: list[str] = field(default_factory=list)


def draw(count: int, seed: int, kinds: Sequence[str]) -> list[Fault]:
    """Draw `count` faults, with the same number of each kind."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        variants = VARIANTS.get(kind, ("",))
        variant = variants[number // len(kinds) % len(variants)]
        places: list[int] = []
        while not places:  # some plans have no place for some kinds
            plan_seed = chance.getrandbits(32)
            places = [*_places(kind, plan(plan_seed))]
        at = chance.choice(places)
        found.append(
            Fault(kind, chance.randrange(4), chance.randrange(1, STEPS - 1), at, variant, plan_seed)
        )
    return found


def _places(kind: str, calls: Sequence[Call]) -> Iterator[int]:
    """Yield the places in a step where a fault of this kind has an effect."""
    for at, call in enumerate(calls[:-1]):
        after = calls[at + 1]
        if kind == "cut" and call.group != "all":
            continue
        crosses = call.group != after.group
        if kind == "swap" and crosses and not _waits_for_all(call, after):
            continue  # this may succeed
        if kind == "crosswise" and call.group != "all":
            continue
        yield at


def _waits_for_all(*calls: Call) -> bool:
    """Return whether one of the calls is of all ranks, and no rank leaves either of them early."""
    is_of_all = any(call.group == "all" for call in calls)
    return is_of_all and all(call.operation != "broadcast" for call in calls)


# ---- ours


def strike(fault: Fault) -> Outcome:
    """Run a job with the fault, and ask for the cause.

    A job that did not reach the fault is repeated, as when another program has taken the port.
    """
    for _ in range(TRIES - 1):
        outcome = _strike(fault)
        if outcome.is_struck:
            return outcome
    return _strike(fault)


def _strike(fault: Fault) -> Outcome:
    began, wires = time.monotonic(), None
    with tempfile.TemporaryDirectory(prefix="torsh-flight-") as name, ExitStack() as stack:
        folder = Path(name)
        told = {**fault.__dict__, "library": "ours", "folder": name}
        if fault.kind == "memory":
            told["variant"] = stack.enter_context(small_memory())
        if fault.kind == "cut":
            wires = stack.enter_context(cable())
        agents = _start(folder, told, wires, stack)
        if wires:
            wait_until(lambda: (folder / "cut").exists(), BOUND, 0.01)
            _link(wires, "down")
        wait_until(lambda: all(agent.poll() is not None for agent in agents), BOUND, 0.05)
        outcome = judge(fault, folder)
    outcome.seconds = time.monotonic() - began
    return outcome


def _start(
    folder: Path, told: dict[str, Any], wires: Cable | None, stack: ExitStack
) -> list[subprocess.Popen[str]]:
    address = wires.addresses[0] if wires else "127.0.0.1"
    meet = [f"--rdzv-endpoint={address}:{free_port()}", "--rdzv-backend=tcp"]
    meet += [f"--rdzv-conf={CONF}", "--nnodes=2", "--nproc-per-node=2"]
    environ = {"FAULT": json.dumps(told), "TORSH_SECRET": "a secret of more than 16 bytes"}
    environ |= {"OMP_NUM_THREADS": "1", "TORSH_ALL_HOSTS": "1"}
    agents = []
    for node in range(2):
        inside = entering(wires.holders[node]) if wires else []
        command = [
            *inside,
            sys.executable,
            "-m",
            "torshrun",
            *meet,
            f"--log-dir={folder}/logs/{node}",
        ]
        command += [f"--hang-timeout={HANG}", "--shutdown-timeout=1", WORKER]
        errors = stack.enter_context((folder / f"stderr_{node}").open("wb")).fileno()
        program = Program(command, folder, environ)
        agents.append(stack.enter_context(started(program, stdout=errors, stderr=errors)))
        if not node:
            wait_until(lambda: _is_served(folder, agents[0]), BOUND, 0.02)
    return agents


def _is_served(folder: Path, agent: subprocess.Popen[str]) -> bool:
    text = (folder / "stderr_0").read_bytes()
    return b"serves the job's store" in text or agent.poll() is not None


def judge(fault: Fault, folder: Path) -> Outcome:
    """Compare what torshctl explain says with the truth."""
    command = [sys.executable, "-m", "torshrun.ctl", "explain", f"{folder}/logs", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOUND, check=False)
    outcome = Outcome(fault)
    try:
        said = json.loads(done.stdout)
        truth = json.loads((folder / "truth").read_text())
    except (ValueError, OSError):
        tail = (folder / "stderr_0").read_text(errors="replace")[-2000:]
        outcome.said = f"{done.stderr[-500:]}\n{tail}"
        outcome.is_struck = (folder / "truth").exists()
        return outcome
    outcome.said = json.dumps({"truth": truth, **said})
    nodes = {rank for node in said["nodes"] for rank in (2 * node, 2 * node + 1)}
    named = {*said["ranks"]} | nodes
    outcome.rank = bool(named) and named <= fault.culprits
    outcome.operation = _is_right(said["operation"], truth)
    outcome.operation |= fault.kind == "crosswise" and any(
        _is_right(each, truth) for each in said["called"].values()
    )
    flight = [sys.executable, "-m", "torshrun.ctl", "flight", f"{folder}/logs", "--json"]
    shown = subprocess.run(flight, capture_output=True, text=True, timeout=BOUND, check=False)
    with suppress(ValueError):
        held = json.loads(shown.stdout)["ranks"]
        outcome.records = {int(rank) for rank in held if held[rank]} == {0, 1, 2, 3}
    return outcome


def _is_right(said: dict[str, Any] | None, truth: dict[str, Any]) -> bool:
    """Return whether it is the call of that sequence number and group, correct or mistaken."""
    if said is None or said["sequence"] != truth["sequence"]:
        return False
    return bool(said["members"] in (None, [])) or [*said["members"]] in GROUPS[truth["group"]]


@contextmanager
def small_memory() -> Iterator[str]:
    """Create a memory cgroup with a small limit, and yield its path; "" if that is not possible."""
    folder = MEMORY / f"torsh-flight-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(LIMIT))
    except OSError:
        yield ""
        return
    try:
        yield str(folder)
    finally:
        wait_until(lambda: _removed(folder), 5.0, 0.05)


def _removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def _link(wires: Cable, state: str) -> None:
    command = [*entering(wires.holders[1]), "ip", "link", "set", "cable", state]
    subprocess.run(command, check=True, timeout=BOUND)


# ---- torch's


def strike_torch(fault: Fault) -> Outcome:
    """Run a job of torch's Gloo with the fault, whose ranks dump torch's flight recorder."""
    outcome = Outcome(fault)
    with tempfile.TemporaryDirectory(prefix="torsh-flight-") as name, ExitStack() as stack:
        told = {**fault.__dict__, "library": "torch", "folder": name, "timeout": TORCH_TIMEOUT}
        if fault.kind == "memory":
            told["variant"] = stack.enter_context(small_memory())
        environ = {"FAULT": json.dumps(told), "TORCH_FR_BUFFER_SIZE": "2000"}
        environ |= {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", WORKER]
        with (Path(name) / "stderr").open("wb") as errors:
            program = Program(command, Path(name), environ)
            with started(program, stdout=errors.fileno(), stderr=errors.fileno()) as process:
                wait_until(lambda: process.poll() is not None, BOUND, 0.05)
        dumps = sorted(Path(name).glob("fr_*"))
        outcome.records = len(dumps) == 4
        outcome.notes = [path.name for path in dumps]
        analyser = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
        done = subprocess.run(
            [*analyser, name, "-p", "fr_", "--allow-incomplete-ranks"],
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )
        outcome.said = (done.stdout + done.stderr)[-3000:]
        found = _BLAMED.search(outcome.said)
        named = {int(rank) for rank in re.findall(r"\d+", found[1] or found[2])} if found else set()
        outcome.rank = bool(named) and named <= fault.culprits
    return outcome


_BLAMED = re.compile(r"missing ranks: \{([0-9, ]+)\}|[Cc]ulprit rank:? (\d+)")
"""Pattern of the first finding of torch's analyser."""


# ---- all


def show(found: Sequence[Outcome], verbose: bool) -> None:
    """Print a line for each kind, and the mistakes."""
    for kind in dict.fromkeys(each.fault.kind for each in found):
        mine = [each for each in found if each.fault.kind == kind]
        ranks, operations, records = (
            sum(getattr(each, name) for each in mine) for name in ("rank", "operation", "records")
        )
        seconds = sum(each.seconds for each in mine) / len(mine)
        print(
            f"{kind:10} {len(mine):3} faults: rank right {ranks}, operation right {operations}, "
            f"all ranks' records {records}; {seconds:.1f} s each"
        )
    for each in found:
        if not (each.rank and each.operation and each.records) and verbose:
            print(f"\n{each.fault}\n  {each.said}")


def checks(found: Sequence[Outcome]) -> list[bars.Check]:
    count = len(found)
    right = sum(each.rank and each.operation for each in found)
    records = sum(each.records for each in found)
    bar = "faults explained"
    return [
        bars.Check("rank and operation right, %", 100 * right / count, 98, bar=bar),
        bars.Check("all ranks' records there, %", 100 * records / count, 100, bar=bar),
    ]


def main() -> int:
    interrupt_on_term()
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of faults")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--torch", type=int, default=0, help="as many jobs of torch's Gloo")
    parser.add_argument("--quick", action="store_true", help="2 faults")
    parser.add_argument("--bars", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="what was said where it was wrong")
    options = parser.parse_args()
    kinds = options.only.split(",")
    if options.torch:
        kinds = [kind for kind in kinds if kind != "cut"]
        found = [strike_torch(each) for each in draw(options.torch, options.seed, kinds)]
        for number, count in sorted(Counter(len(each.notes) for each in found).items()):
            print(f"dumps of {number} of 4 ranks: {count} times")
        right = sum(each.rank for each in found)
        print(f"torch's analyser names the right rank first: {right} of {len(found)}")
        if options.verbose:
            show(found, verbose=True)
        return 0
    if options.quick:
        kinds = [kind for kind in kinds if kind in ("kill", "wrong")]
    faults = draw(len(kinds) if options.quick else options.count, options.seed, kinds)
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [*pool.map(strike, faults)]
    show(found, options.verbose)
    checked = checks(found)
    if options.bars:
        print(bars.summary(checked))
    return 0 if bars.all_pass(checked) or not (options.bars or options.quick) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UnavailableError as error:
        sys.exit(str(error))
