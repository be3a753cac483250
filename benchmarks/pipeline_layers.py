"""Compares pipelines of Llama's MLPs with torch's.

    python benchmarks/pipeline_layers.py --help

The model has four SwiGLU layers (RMSNorm, gate, up and down, residual) of width 384 on two ranks
with one thread each. A batch has 8 sequences of 256 tokens, each of which is a microbatch. Ours and
torch.distributed.pipelining's over Gloo have the same stages, microbatches and weights, and their
gradients are compared. Each round starts each of them in its own processes, as users run it, and
torch's once more with the allocator tuned as torsh tunes it ("tuned"). The median of ratios within
rounds counts.

Memory is a rank's peak in 1F1B, above that of its process with model and batch: "tensors", as
counted by torch's allocator; and "resident", which includes libraries, of both ranks together.
Memory of the kernel's sockets, which hold Gloo's messages, is not counted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import bars, table
from benchmarks.bars import Check
from benchmarks.peers import HERE, ONE_THREAD, SPAWN
from benchmarks.processes import Program, RunError, interrupt_on_term, run
from benchmarks.rounds import WrongResultError, say
from benchmarks.session import positive, several
from benchmarks.torch_steps import TUNED

_WORKER = HERE / "pipeline_layers_worker.py"
_CONTENDERS: dict[str, tuple[str, dict[str, str]]] = {
    "ours": ("ours", {}),
    "torch": ("torch", {}),
    "torch tuned": ("torch", TUNED),
}
"""The library and additional variables of its processes, by name."""
_LIMITS = {"1f1b": 0.95, "zb": 0.9, "zbv": 0.9}
"""Largest ratio of ours to torch's."""
_MICROBATCHES = (4, 8)
"""Numbers of microbatches with which memory is measured."""
_MEMORY = (("tensors", (0,)), ("tensors", (1,)), ("resident", (0, 1)))
"""Kinds of memory, and the ranks to add up. One rank's buffers hold the other one's messages."""
_AS_MUCH = 1.005
_NEAR = 1e-4
_MIB = 1 << 20
Found = dict[str, list[list[dict[str, Any]]]]
"""Results of each contender, by round and rank."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--rounds", type=positive, default=5, help="default: 5")
    add("--turns", type=positive, default=8, help="steps of each schedule in a round; default: 8")
    add("--width", type=positive, default=384, help="default: 384")
    add("--hidden", type=positive, default=1024, help="of gate and up; default: 1024")
    add("--rows", type=positive, default=256, help="tokens of a microbatch; default: 256")
    add("--microbatches", type=positive, default=8, help="default: 8")
    add("--schedules", type=_schedules, default=tuple(_LIMITS), help="default: all")
    add("--what", type=lambda text: text.split(","), default=["times", "memory"])
    add("--timeout", type=float, default=300.0, help="seconds that one run may take")
    add("--quick", action="store_true", help="little, none tuned: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    options = parser.parse_args(arguments)
    options.contenders, options.counts = tuple(_CONTENDERS), _MICROBATCHES
    if options.quick:
        options.rounds, options.turns = 1, 1
        options.contenders, options.counts = ("ours", "torch"), _MICROBATCHES[:1]
        options.width, options.hidden, options.rows = 32, 64, 8
    return options


def _schedules(text: str) -> tuple[str, ...]:
    return several(text, tuple(_LIMITS))


def measure(options: argparse.Namespace, name: str, plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of one contender's ranks. Raises RunError if it fails."""
    library, env = _CONTENDERS[name]
    with tempfile.TemporaryDirectory(prefix="torsh-benchmark-") as folder:
        to = Path(folder) / "found.json"
        fields = ("turns", "width", "hidden", "rows", "microbatches")
        plan = {field: getattr(options, field) for field in fields} | plan
        plan |= {"library": library, "depth": 4, "to": str(to)}
        env = {**ONE_THREAD, **env, "PYTHONPATH": str(HERE.parent)}
        command = [sys.executable, str(SPAWN), "2", str(_WORKER), json.dumps(plan)]
        run(Program(command, Path(folder), env), options.timeout)
        return [json.loads(Path(f"{to}.{rank}").read_text()) for rank in range(2)]


def rounds(options: argparse.Namespace, plan: dict[str, Any]) -> Found:
    """Run all contenders in each round."""
    found: Found = {name: [] for name in options.contenders}
    for number in range(options.rounds):
        say(f"{plan['what']}, round {number + 1} of {options.rounds}")
        for name, runs in found.items():
            runs.append(measure(options, name, plan))
    return found


def times(options: argparse.Namespace) -> list[Check]:
    """Print the times of steps, and return the checks."""
    found = rounds(options, {"what": "times", "schedules": options.schedules})
    _compare_gradients(found)
    rows, checks = [], []
    for schedule in options.schedules:
        took = {name: [_took(ranks, schedule) for ranks in runs] for name, runs in found.items()}
        ratios = {name: _ratio(took["ours"], took[name]) for name in took if name != "ours"}
        cells = [f"{1e3 * median(each):.1f}" for each in took.values()]
        rows.append([schedule, *cells, *(f"{each:.3f}" for each in ratios.values())])
        limit = _LIMITS[schedule]
        checks.append(Check(f"{schedule} / torch", ratios["torch"], limit, True, "times"))
    header = ["step", *(f"{name} ms" for name in found)]
    header += [f"ours / {name}" for name in found if name != "ours"]
    print(f"\nms of a step of {options.microbatches} microbatches")
    print(table.render(header, rows))
    return checks


def _took(ranks: list[dict[str, Any]], schedule: str) -> float:
    """Return the seconds until the slower rank has ended a step; the median of turns."""
    return median(map(max, *(each["times"][schedule] for each in ranks)))


def _ratio(own: list[float], other: list[float]) -> float:
    return median(a / b for a, b in zip(own, other, strict=True))


def _compare_gradients(found: Found) -> None:
    (expected, *others) = ([each["grads"] for each in ranks] for ranks in found["torch"])
    for grads in [*others, *([each["grads"] for each in ranks] for ranks in found["ours"])]:
        for rank, schedules in enumerate(expected):
            for schedule, wanted in schedules.items():
                _compare(f"{schedule} on rank {rank}", wanted, grads[rank][schedule])


def _compare(where: str, wanted: dict[str, list[float]], grads: dict[str, list[float]]) -> None:
    if {*wanted} != {*grads}:
        raise WrongResultError(f"{where}: gradients of {[*grads]}, and torch has {[*wanted]}")
    for name, (_, norm) in wanted.items():
        if not math.isclose(grads[name][1], norm, rel_tol=_NEAR):
            raise WrongResultError(f"{where}: {name} has {grads[name][1]}, and in torch {norm}")


def memory(options: argparse.Namespace) -> list[Check]:
    """Print the memory of steps, and return the checks."""
    rows, checks = [], []
    for count in options.counts:
        plan = {"what": "memory", "schedules": ["1f1b"], "microbatches": count}
        found = rounds(options, plan)
        for kind, ranks in _MEMORY:
            held = {
                name: median(sum(each[rank][kind] for rank in ranks) for each in runs) / _MIB
                for name, runs in found.items()
            }
            against = held["ours"] / held["torch"]
            where = " and ".join(map(str, ranks))
            cells = [f"{each:.1f}" for each in held.values()]
            rows.append([f"{count}", kind, where, *cells, f"{against:.2f}"])
            what = f"{kind}, {count} microbatches, rank {where}: ours / torch"
            checks.append(Check(what, against, _AS_MUCH, True, "memory"))
    print("\nMiB of 1f1b at most")
    print(table.render(["microbatches", "of", "rank", *found, "ours / torch"], rows))
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    interrupt_on_term()
    kinds = {"times": times, "memory": memory}
    checks: list[Check] = []
    try:
        for name in options.what:
            checks += kinds[name](options)
    except (WrongResultError, RunError) as error:
        say(str(error))
        return 1
    return bars.conclude(options, checks)


if __name__ == "__main__":
    raise SystemExit(main())
