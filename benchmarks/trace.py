"""Measures the cost of tracing a training's timeline.

    python benchmarks/trace.py --bars

Two ranks under torshrun train a model with torch and torsh's DistributedDataParallel. Rounds of
steps alternate: undisturbed, while `torshctl trace` follows the job, and with torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

if not __package__:
    sys.path[:] = [*sys.path[1:], str(Path(__file__).resolve().parents[1])]

from benchmarks.bars import Check, all_pass
from benchmarks.peers import ONE_THREAD
from benchmarks.table import render

_KINDS = ("alone", "traced", "profiled")
_MOST, _MOST_BYTES = 1.01, 60.0
_SECONDS = 600.0
_TRACER, _FIGURES = "tracer", "figures.json"


# ---- a rank


def be_rank(folder: Path, rounds: int, steps: int) -> None:
    import torch

    import torsh_runtime as tr

    torch.set_num_threads(1)
    tr.init_process_group()
    model = tr.DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    numbers = iter(range(1 << 30))

    def step() -> None:
        tr.monitoring.step(next(numbers))
        with tr.monitoring.section("data"):
            batch = torch.randn(64, 512)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(20):
        step()
    is_first = tr.get_rank() == 0
    tracer = _tracer(folder) if is_first else 0
    tr.barrier()
    found: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for number in range(rounds):
        for kind in (*_KINDS[number % 3 :], *_KINDS[: number % 3]):
            with _traced(tracer, is_on=kind == "traced"), _profiled(kind == "profiled"):
                tr.barrier()
                step()
                begin = time.perf_counter()
                for _ in range(steps):
                    step()
                tr.barrier()
                found[kind].append((time.perf_counter() - begin) / steps)
    if is_first:
        (folder / "steps.json").write_text(json.dumps(found))


def _model() -> Any:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(8)]
    return torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.ReLU())))


def _tracer(folder: Path) -> int:
    """Return the pid of the tracing process, once it is tracing."""
    (folder / "ready").touch()
    while not (folder / _TRACER).exists():
        time.sleep(0.01)
    time.sleep(0.5)
    return int((folder / _TRACER).read_text())


@contextmanager
def _traced(tracer: int, *, is_on: bool) -> Iterator[None]:
    """Let the tracing process run, or stop it. Ranks other than the first do nothing."""
    if tracer:
        os.kill(tracer, signal.SIGCONT if is_on else signal.SIGSTOP)
        time.sleep(0.1)  # lets it catch up
    yield


def _profiled(is_on: bool) -> Any:
    if not is_on:
        return nullcontext()
    from torch.profiler import ProfilerActivity, profile

    return profile(activities=[ProfilerActivity.CPU])


# ---- the process that traces


def be_tracer(folder: Path, agent: int) -> None:
    """Trace like torshctl trace, and record the cost."""
    from torsh_runtime.monitoring.trace_file import write_trace
    from torshrun.ctl.trace.joined import Joined
    from torshrun.ctl.trace.live import follow, jobs_of

    signal.signal(signal.SIGINT, signal.default_int_handler)
    jobs = jobs_of([agent])
    before = resource.getrusage(resource.RUSAGE_SELF)
    nodes = follow(jobs, _SECONDS, None, lambda text: _begin(folder))
    after = resource.getrusage(resource.RUSAGE_SELF)
    joined = Joined(nodes, None, None)
    written = write_trace(str(folder / "trace.json.gz"), joined.events(), joined.about())
    took = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    packed = sum(node.nbytes for node in nodes)
    figures = {
        "operations": joined.count,
        "notes": joined.noted,
        "packed": packed,
        "written": written,
        "took": took,
    }
    (folder / _FIGURES).write_text(json.dumps(figures))


def _begin(folder: Path) -> None:
    (folder / "new").write_text(str(os.getpid()))
    (folder / "new").rename(folder / _TRACER)


# ---- together


def measured(folder: Path, rounds: int, steps: int) -> tuple[dict[str, list[float]], Any]:
    """Return the seconds of a step in each round, by kind, and the tracing process's figures."""
    script = str(Path(__file__).resolve())
    given = ["--folder", str(folder), "--rounds", str(rounds), "--steps", str(steps)]
    job = subprocess.Popen(
        [sys.executable, "-m", "torshrun", "--nproc-per-node", "2", script, "--rank", *given],
        env={**os.environ, **ONE_THREAD, "KINETO_LOG_LEVEL": "9"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    tracer = None
    try:
        while not (folder / "ready").exists() and job.poll() is None:
            time.sleep(0.05)
        tracer = subprocess.Popen([sys.executable, script, "--tracer", str(job.pid), *given])
        job.wait(_SECONDS)
        tracer.send_signal(signal.SIGCONT)
        tracer.wait(60)
    finally:
        for process in (job, tracer):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
    found = (json.loads((folder / name).read_text()) for name in ("steps.json", _FIGURES))
    return next(found), next(found)


def report(found: dict[str, list[float]], figures: Any, rounds: int, steps: int) -> list[Check]:
    """Print a line for each kind, and return the checks."""
    rows, ratios = [], {}
    for kind in _KINDS:
        each = [a / b for a, b in zip(found[kind], found["alone"], strict=True)]
        ratios[kind] = statistics.median(each)
        typical = statistics.median(found[kind]) * 1e3
        rows.append([kind, f"{typical:.3f}", f"{ratios[kind]:.4f}"])
    print(render(["steps", "ms", "ratio"], rows))
    operations, notes = figures["operations"], figures["notes"]
    packed = figures["packed"] / operations
    written = figures["written"] / operations
    seconds = statistics.mean(found["traced"]) * steps * rounds
    print(
        f"{operations} operations and {notes} notes of steps and sections; collecting took "
        f"{figures['took'] / seconds:.2%} of a processor"
    )
    limits = {
        "a traced step": (ratios["traced"], _MOST),
        "bytes of all that is collected, an operation": (packed, _MOST_BYTES),
        "bytes of the file, an operation": (written, _MOST_BYTES),
    }
    return [
        Check(what, value, limit, at_most=True, bar="trace")
        for what, (value, limit) in limits.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=40, help="of each kind")
    parser.add_argument("--steps", type=int, default=40, help="of a round")
    parser.add_argument("--bars", action="store_true", help="end with 1 if a bar is not reached")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tracer", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rounds, steps = (2, 5) if options.quick else (options.rounds, options.steps)
    if options.rank:
        be_rank(options.folder, options.rounds, options.steps)
        return 0
    if options.tracer:
        be_tracer(options.folder, options.tracer)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found, figures = measured(Path(folder), rounds, steps)
    checks = report(found, figures, rounds, steps)
    print("\n".join(map(str, checks)))
    return 0 if all_pass(checks) or not options.bars else 1


if __name__ == "__main__":
    raise SystemExit(main())
