"""Tests of torch's source tree, run on gloo and with torsh in gloo's stead, and compared.

`python -m support.torch_tree TREE [--tests PATTERN] [--keep DIR] [FILE...]` runs the files, given
relative to TREE/test/distributed, once in each mode and a test that only torsh fails once more by
itself. TREE is torch's source; wheels have no tests. It prints for each file how many tests pass on
gloo and how many of these on torsh, and fails if any does not. Only tests that make a group of gloo
count: the others would tell nothing of torsh.

Most of torch's tests are for GPUs. Here they are let try on CPUs: in a file's text CPUs take the
place of GPUs and gloo that of NCCL before it is loaded. What cannot do without GPUs fails on gloo
and does not count. Ranks are forked, for spawned ones would load torch for each test.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from support.torch_suite import Results

FILES = [
    "test_functional_api.py",
    "test_c10d_functional_native.py",
    "test_device_mesh.py",
    "tensor/test_api.py",
    "tensor/test_dtensor.py",
    "tensor/test_redistribute.py",
    "tensor/parallel/test_*.py",
    "_composable/fsdp/test_fully_shard_[!cl]*.py",
    "_composable/fsdp/test_fully_shard_comm.py",
    "_composable/test_replicate*.py",
    "pipelining/test_s*.py",
]
"""What is run when nothing is named."""
KNOWN = {
    "GlooProcessGroupWithDispatchedCollectivesTests.test_all_to_all_single": "expects that strided "
    "tensors are refused, which torsh takes",
}
"""Tests that torsh need not pass, and why."""
_DEADLINE = 200.0
"""Seconds for one test, and for a file to load."""
_DEVICES = 4
"""How many GPUs tests are told of, in whose place CPUs are."""


class Outcome(NamedTuple):
    """What became of a test."""

    outcome: str
    text: str
    makes_groups: bool
    """Whether it made a group whose CPU tensors go over gloo, or torsh in its stead."""


Outcomes = dict[str, Outcome]


# ---- The process that runs the tests of one file in one mode


class _Report(Results):
    """Writes a line when a test begins and one when it ends, so that one that hangs is known."""

    path: Path

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._groups = _size(_groups(self.path))
        self._write(test, "timed out", "it neither ended nor failed")
        super().startTest(test)

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        name = test.id().rpartition(".")[2]
        outcome, text, _ = self.outcomes.pop(name, ("failed", "in a part of it", 0.0))
        self._write(test, outcome, text)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self._note(test, "failed", "as torch expects")

    def _write(self, test: unittest.TestCase, outcome: str, text: str) -> None:
        makes_groups = _size(_groups(self.path)) > self._groups
        with self.path.open("a") as out:
            out.write(json.dumps([_name(test), outcome, text, makes_groups]) + "\n")


def run(file: Path, patterns: Sequence[str], report: Path) -> None:
    """Run the file's tests that match and that the report does not name, each in a process of its
    own: they leave groups behind, and a class whose ranks live on skips what follows a failure.
    """
    _prepare(report)
    known = _read(report)
    for tests in unittest.TestLoader().loadTestsFromModule(_on_cpus(file)):
        for test in cast(Iterable[unittest.TestCase], tests):
            name = _name(test)
            if name not in known and any(fnmatch.fnmatch(name, p) for p in patterns):
                process = multiprocessing.Process(target=_run, args=(test, report))
                process.start()
                process.join()


def _run(test: unittest.TestCase, report: Path) -> None:
    _Report.path = report
    unittest.TextTestRunner(resultclass=_Report, verbosity=2).run(unittest.TestSuite([test]))


def _prepare(report: Path) -> None:
    """Have torch's tests fork, try on CPUs, and leave a mark where they make a group."""
    from torch.testing._internal import common_distributed

    multiprocessing.set_start_method("fork")
    fork = multiprocessing.get_context("fork").Process
    case: Any = common_distributed.MultiProcessTestCase
    case._spawn_processes = lambda self: self._start_processes(fork)
    for condition in ("skip_if_lt_x_gpu", "requires_accelerator_dist_backend", "requires_nccl"):
        setattr(common_distributed, condition, lambda *_, **__: lambda test: test)
    _pretend()
    _mark_groups(_groups(report))


def _pretend() -> None:
    """Have CPUs do what tests want of accelerators."""
    import torch
    from torch.testing._internal import common_fsdp, common_utils

    cpus: Any = torch.cpu
    torch.accelerator.device_count = cpus.device_count = lambda: _DEVICES
    torch.accelerator.set_device_index = cpus._sleep = lambda _: None
    cpus.current_device = lambda: 0
    common_fsdp.get_cycles_per_ms = common_utils.get_cycles_per_ms = lambda: 1.0
    common_fsdp.DEVICE_COUNT = common_fsdp.FSDPTestContinuous.world_size = _DEVICES
    torch.Tensor.pin_memory = lambda tensor, *_: tensor


def _on_cpus(file: Path) -> ModuleType:
    """The file as a module whose GPUs are CPUs, and NCCL gloo."""
    text = file.read_text()
    for gpus, cpus in _GPUS:
        text = re.sub(gpus, cpus, text)
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent))
    exec(compile(text, file, "exec"), vars(module))
    return module


_GPUS = (
    (r"(?<=[\"'])cuda(?=[\"':])", "cpu"),
    (r"(?<=[\"'])nccl(?=[\"'])", "gloo"),
    (r"\btorch\.cuda\.", "torch.cpu."),
    (r"\bBackend\.NCCL\b", "Backend.GLOO"),
    (r"\.cuda\([^()]*\)", ".cpu()"),
    (r"\bdevice_ids=\[[^\[\]]*\]", "device_ids=None"),
)
"""What GPUs and NCCL are called, and what is written in the place of that."""


def _mark_groups(marks: Path) -> None:
    import torch.distributed as dist

    c10d: Any = dist.distributed_c10d
    make, stands_in = c10d._new_process_group_helper, bool(os.environ["TORSH_TORCH_BACKEND"])

    def marked(size: int, rank: int, ranks: Any, backend: str, *given: Any, **named: Any) -> Any:
        made = make(size, rank, ranks, backend, *given, **named)
        asked = c10d.BackendConfig(backend).get_device_backend_map().get("cpu")
        if asked == "gloo" and hasattr(made[0], "is_torsh") == stands_in:
            with marks.open("a") as out:
                out.write(".")
        return made

    c10d._new_process_group_helper = marked


def _name(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def _groups(report: Path) -> Path:
    return report.with_suffix(".groups")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read(report: Path) -> Outcomes:
    if not report.exists():
        return {}
    lines = (json.loads(line) for line in report.read_text().splitlines())
    return {name: Outcome(*outcome) for name, *outcome in lines}


# ---- The process that has them run


def outcomes(file: Path, mode: str, patterns: Sequence[str], report: Path) -> Outcomes:
    """What became of the file's tests, run in other processes: in a new one after each that hung
    or that took the process with it.
    """
    while True:
        before = len(_read(report))
        if _ended(file, mode, patterns, report) or len(_read(report)) == before:
            return _read(report)


def _ended(file: Path, mode: str, patterns: Sequence[str], report: Path) -> bool:
    """Run what the report does not name; whether that went on to its end."""
    environ = {
        **os.environ,
        "TORSH_TORCH_BACKEND": "torsh" if mode == "stead" else "",
        "OMP_NUM_THREADS": "1",
        "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(int(_DEADLINE * 0.6)),
    }
    command = [sys.executable, "-P", "-m", "support.torch_tree", "--run", str(report)]
    command += [str(file), *patterns]
    with report.with_suffix(".log").open("a") as out:
        child = subprocess.Popen(
            command, env=environ, stdout=out, stderr=out, start_new_session=True
        )
    try:
        return _watched(child, report)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _watched(child: subprocess.Popen[bytes], report: Path) -> bool:
    """Whether it ends well before it has reported nothing for the deadline."""
    size, since = -1, time.monotonic()
    while time.monotonic() - since < _DEADLINE:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(0.2) == 0
        if _size(report) != size:
            size, since = _size(report), time.monotonic()
    return False


def compare(file: Path, name: str, patterns: Sequence[str], folder: Path) -> list[str]:
    """Print the file's line of the table; the tests that pass on gloo alone, and how they fail."""
    stem = name.removesuffix(".py").replace("/", ".")

    def found(mode: str, tests: Sequence[str], turn: str = "") -> Outcomes:
        return outcomes(file, mode, tests, folder / f"{stem}.{mode}{turn}.json") if tests else {}

    gloo = found("gloo", patterns)
    if not gloo:
        print(f"{name:60} {_last_line(folder / f'{stem}.gloo.log')}", flush=True)
    passed = _passed(gloo)
    torsh = found("stead", passed)
    failed = sorted({*passed} - {*_passed(torsh)})
    for turn, test in enumerate(failed):  # one that was late, alone
        torsh |= found("stead", [test], f".{turn}")
    failed = sorted({*passed} - {*_passed(torsh)})
    num_passed = len(passed) - len(failed)
    print(f"{name:60} {len(passed):5} {num_passed:5} {len(gloo) - len(passed):5}", flush=True)
    return [f"{name}: {test}" for test in failed if test not in KNOWN]


def _last_line(log: Path) -> str:
    return (log.read_text().splitlines() or [""])[-1]


def _passed(found: Outcomes) -> list[str]:
    return [
        test
        for test, (outcome, _, makes_groups) in found.items()
        if outcome == "passed" and makes_groups
    ]


def _files(tree: Path, patterns: Sequence[str]) -> Iterator[tuple[str, Path]]:
    root = tree / "test" / "distributed"
    for pattern in patterns or FILES:
        for file in sorted(root.glob(pattern)):
            yield str(file.relative_to(root)), file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, help="torch's source tree")
    parser.add_argument("files", nargs="*", help="of TREE/test/distributed; may have * in them")
    parser.add_argument("--tests", default="*", help="only those; a pattern of Class.test_name")
    parser.add_argument("--keep", type=Path, help="where reports and logs stay")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args()
    if given.run:
        run(given.tree, given.files, given.run)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends who runs the tests
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True, parents=True)
        print(f"{'file':60}  gloo torsh other")
        worse = [
            line
            for name, file in _files(given.tree, given.files)
            for line in compare(file, name, [given.tests], folder)
        ]
    print(*worse, sep="\n")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
