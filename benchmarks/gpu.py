"""Measures training on one GPU beside torch's, in nine minutes.

    python benchmarks/gpu.py --bars --json gpu.json

Two ranks (three where one is killed) share the first GPU. Each claims to be a host of its own, so
that NCCL accepts them and connects them by sockets: times show what the wrappers and the backend
do, not NCCL's speed. torch's wrappers run in the same processes. Each case has its own processes
and its own limit of time; one that fails leaves its rows without data, and the others follow.
Needs torch with CUDA, nccl4py and cupy.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks import bars, machine
from benchmarks.bars import Check
from benchmarks.processes import INTERRUPTED, Program, RunError, interrupt_on_term, run
from benchmarks.session import positive, several
from benchmarks.table import MISSING, ratio, render
from benchmarks.timing import publish

WORKER = Path(__file__).with_name("gpu_worker.py")
SPAWN = Path(__file__).with_name("spawn.py")
BUDGET = 540
"""Seconds that all cases may take together."""
_PACKAGES = ("torch", "nccl4py", "cupy-cuda13x", "cupy-cuda12x", "nvidia-nccl-cu13")
Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Bar:
    """Limits one figure of a case, or its ratio to another one."""

    what: str
    """The figure, which is the largest of all ranks'."""
    limit: float
    beside: str = ""
    """The figure that it is divided by; "" if it is limited itself."""
    unit: str = ""

    def value(self, figures: Figures) -> float | None:
        """Return what the limit is for; None if it was not measured."""
        own, other = figures.get(self.what), figures.get(self.beside) if self.beside else 1.0
        return None if own is None or not other else own / other


def of_torch(what: str, limit: float, beside: str = "torch") -> Bar:
    return Bar(f"ours {what}", limit, f"{beside} {what}")


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    seconds: float
    """Time after which it is given up."""
    bars: tuple[Bar, ...]
    ranks: int = 2
    by_hand: bool = False
    """True if no agent starts it, which would end all ranks when one is killed."""


def _calls() -> tuple[Bar, ...]:
    names = [f"call, {count} under way" for count in (0, 50, 200)]
    absolute = [Bar(f"ours {name}", 15.0, unit="us") for name in names]
    return (*absolute, *(of_torch(name, 0.6) for name in names))


CASES: Mapping[str, Case] = {
    "fsdp": Case(
        "FSDP, 8 x Linear(4096), fused AdamW",
        110,
        tuple(
            of_torch(f"{what}, {ahead} steps ahead", 0.95)
            for ahead in (10, 40)
            for what in ("step", "peak")
        ),
    ),
    "launch-bound": Case("FSDP, 48 x Linear(256)", 60, (of_torch("step", 0.75),)),
    "ddp": Case("DDP, 6 x Linear(2048)", 50, (of_torch("step", 1.0),)),
    "ddp-gpt": Case("DDP, GPT of 290 tensors", 60, (of_torch("step", 1.0),)),
    "calls": Case("all_reduce(async_op=True), processor time of a call", 60, _calls()),
    "held": Case(
        "200 x all_reduce of 1 MiB behind a busy GPU", 40, (Bar("ours growth", 8.0, unit="MiB"),)
    ),
    "graph": Case(
        "a step with collectives in a CUDA graph, 10 replays",
        50,
        (Bar("ours error", 1e-5), of_torch("step", 1.0, "eager")),
    ),
    "attention": Case(
        "context_attention, 8,192 tokens, bf16",
        50,
        (Bar("ours error", 0.05), of_torch("step", 1.15, "sdpa"), of_torch("peak", 1.3, "sdpa")),
    ),
    "clip": Case(
        "clip_grad_norm_ of 200 M elements",
        50,
        (
            Bar("ours error", 1e-3),
            Bar("ours error on a side stream", 1e-3),
            of_torch("step", 2.0),
        ),
    ),
    "offload": Case(
        "FSDP, 8 x Linear(2048), in the processor's memory",
        70,
        (of_torch("peak", 1.0), of_torch("step", 0.8)),
    ),
    "late": Case(
        "rank 1's GPU does not come, timeout 10 s",
        60,
        (Bar("ours unnamed", 0.0), Bar("ours seconds", 15.0, unit="s")),
    ),
    "death": Case(
        "rank 1 of 3 is killed",
        50,
        (Bar("ours free", 0.5, unit="s"), Bar("ours anew", 2.0, unit="s")),
        ranks=3,
        by_hand=True,
    ),
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--cases", type=_cases, default=tuple(CASES), help=f"default: {','.join(CASES)}")
    add("--budget", type=positive, default=BUDGET, help="seconds for all; default: %(default)s")
    add("--json", type=Path, metavar="FILE", help="write the figures and the machine's description")
    add("--quick", action="store_true", help="small sizes: shows that it works")
    add("--bars", action="store_true", help="print pass or fail; exit status 1 unless all pass")
    return parser.parse_args(arguments)


def _cases(text: str) -> tuple[str, ...]:
    return several(text, tuple(CASES))


def refusal() -> str:
    """Return why it cannot measure here; "" if it can."""
    from torshrun.topology.gpus import visible

    if not any(Path("/dev").glob("nvidia[0-9]*")) or not visible(os.environ):
        return "it needs an NVIDIA GPU, and none is visible here (nvidia-smi, CUDA_VISIBLE_DEVICES)"
    asked = [
        sys.executable,
        "-P",
        "-c",
        "import torch, nccl.core; assert torch.cuda.is_available()",
    ]
    tried = subprocess.run(asked, capture_output=True, text=True)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"torch with CUDA and nccl4py cannot be used here: {last}"
    return ""


def command(name: str, folder: Path, options: Sequence[str] = ()) -> list[str]:
    """Return what starts a case's ranks; each leaves its figures in the folder."""
    case = CASES[name]
    ranks, python = str(case.ranks), [sys.executable, "-P"]
    launch = [*python, "-m", "torshrun", "--nproc-per-node", ranks, "--max-restarts", "0"]
    if case.by_hand:
        launch = [*python, str(SPAWN), "--outlive", ranks]
    return [*launch, str(WORKER), name, str(folder), *options]


def measured(name: str, limit: float, options: Sequence[str] = ()) -> dict[str, float]:
    """Return the largest of each figure of all ranks. Raise RunError if the case fails."""
    expected = CASES[name].ranks - CASES[name].by_hand  # one is killed there
    with tempfile.TemporaryDirectory(prefix="gpu-") as made:
        folder = Path(made)
        run(Program(command(name, folder, options), cwd=folder), limit)
        told = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
    if len(told) < expected:
        raise RunError(f"{len(told)} of {expected} ranks left figures")
    if len({frozenset(each) for each in told}) > 1:
        raise RunError(f"ranks left different figures: {[sorted(each) for each in told]}")
    return {what: _worst([each[what] for each in told]) for what in told[0]}


def _worst(values: Sequence[float]) -> float:
    """Return the largest of all ranks' values, or NaN if one of them is NaN."""
    return math.nan if any(map(math.isnan, values)) else max(values)


def checks(figures: Mapping[str, Figures]) -> list[Check]:
    """Return a check for each bar of the cases that these figures are of."""
    return [
        Check(_words(name, bar), bar.value(found), bar.limit, at_most=True, bar=CASES[name].title)
        for name, found in figures.items()
        for bar in CASES[name].bars
    ]


def _words(name: str, bar: Bar) -> str:
    unit = f" in {bar.unit}" if bar.unit else ""
    return f"{name}: {bar.what}{f' / {bar.beside}' if bar.beside else ''}{unit}"


def table(figures: Mapping[str, Figures]) -> str:
    """Return a line for each bar: what, ours, the other, the ratio, the limit."""
    body = []
    for name, found in figures.items():
        for bar in CASES[name].bars:
            own, other = found.get(bar.what), found.get(bar.beside)
            quotient = bar.value(found) if bar.beside else None
            what = f"{bar.what.removeprefix('ours ')} {bar.unit}".strip()
            shown = [_number(own), _number(other), ratio(quotient), f"{bar.limit:g}"]
            body.append([name, what, *shown])
    return render(["case", "what", "ours", "beside", "ratio", "limit"], body)


def _number(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4g}"


def measure_all(
    given: argparse.Namespace, figures: dict[str, Figures], failures: dict[str, str]
) -> None:
    """Run the cases within the budget, and note their figures and the failures."""
    end = time.monotonic() + given.budget
    for name in given.cases:
        left = end - time.monotonic()
        figures[name] = {}
        try:
            if left <= 0:
                raise RunError("the budget is spent")
            options = ["--quick"] if given.quick else []
            figures[name] = measured(name, min(left, CASES[name].seconds), options)
        except RunError as error:
            failures[name] = str(error)
            print(f"{name}: failed: {str(error).splitlines()[-1]}", flush=True)
        else:
            print(f"{name}: {figures[name]}", flush=True)
        if given.json:  # whatever ends this program, what was measured is there
            write(given.json, figures, failures)


def write(path: Path, figures: Mapping[str, Figures], failures: Mapping[str, str]) -> None:
    """Write what was measured; numbers that are not finite become words, which JSON has."""
    record = {
        "machine": machine.describe(),
        "versions": _versions(),
        "figures": figures,
        "failures": failures,
        "checks": [asdict(check) | {"passed": check.passed} for check in checks(figures)],
    }
    plain = json.loads(json.dumps(record), parse_constant=str)
    publish(path, (json.dumps(plain, indent=1) + "\n").encode())


def report(
    given: argparse.Namespace, figures: Mapping[str, Figures], failures: Mapping[str, str]
) -> int:
    """Print what was measured, and return the exit status."""
    found = checks(figures)
    print(f"\n{table(figures)}")
    if given.bars:
        print(f"\n{bars.summary(found)}")
    return int(bool(failures) or (given.bars and not bars.all_pass(found)))


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    given = parse()
    interrupt_on_term()
    if why := refusal():
        print(f"benchmarks/gpu.py: {why}", file=sys.stderr)
        return 2
    figures: dict[str, Figures] = {}
    failures: dict[str, str] = {}
    try:
        measure_all(given, figures, failures)
    except KeyboardInterrupt:
        report(given, figures, failures)
        return INTERRUPTED
    return report(given, figures, failures)


if __name__ == "__main__":
    sys.exit(main())
