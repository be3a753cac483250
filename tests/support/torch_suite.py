"""torch's own suite for its distributed backends, run on torsh and on gloo, and compared.

`python -m support.torch_suite [--ranks N] [--keep DIR] [--own] [PATTERN...]` runs it three times:

gloo    gloo itself: the baseline
torsh   torsh as a user meets it; tests that ask for gloo by name skip themselves
stead   torsh in gloo's stead, as by --torch-backend torsh, so that those tests run on it too

and fails unless every test that passed on gloo passes on torsh, by its own name or in gloo's
stead, and none fails by its own name. With --own it runs twice: on gloo, and

own     torsh in gloo's stead and our DistributedDataParallel in the place of torch's

and fails unless every test that passed on gloo passes, but for those in LEFT_OUT.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

MODES = ("gloo", "torsh", "stead")
OWN_MODES = ("gloo", "own")
LEFT_OUT = {
    "test_DistributedDataParallel_requires_grad": "ConfigError, a ValueError, is no RuntimeError",
    "test_ddp_logging_data_cpu": "asks for what torch's reducer logs of itself",
    "test_static_graph_api_cpu": "calls a private method; static_graph=True is the public way",
}
"""What our DistributedDataParallel can't express, and why."""
Outcomes = dict[str, list[Any]]
_LIMIT = 3600.0
"""Seconds for one run of the whole suite."""


class Results(unittest.TextTestResult):
    """What became of each test, and how long it took."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.outcomes: dict[str, tuple[str, str, float]] = {}
        self._began = 0.0

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._began = time.monotonic()
        super().startTest(test)

    def _note(self, test: unittest.TestCase, outcome: str, text: str = "") -> None:
        name = test.id().rpartition(".")[2]
        self.outcomes[name] = (outcome, text, time.monotonic() - self._began)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._note(test, "failed", self._exc_info_to_string(err, test))

    addFailure = addError  # noqa: N815


def run(patterns: list[str], report: str) -> None:
    """Run the suite in this process, for the backend that the environment names."""
    _prepare(os.environ["TORSH_SUITE_MODE"])
    case = _test_case()
    names = unittest.TestLoader().getTestCaseNames(case)
    chosen = [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]
    runner = unittest.TextTestRunner(resultclass=Results, verbosity=2)
    result = runner.run(unittest.TestSuite(case(name) for name in chosen))
    Path(report).write_text(json.dumps(result.outcomes, indent=1))


def _prepare(mode: str) -> None:
    """Make the backend known, and known to torch's tests as one that can do what gloo can."""
    if mode == "gloo":
        return
    from torch.testing._internal.common_distributed import DistTestCases
    from torch.testing._internal.distributed import distributed_test

    if mode == "own":
        from torsh_runtime.parallel.ddp import DistributedDataParallel

        distributed_test.DDP = DistributedDataParallel
        distributed_test.nn.parallel.DistributedDataParallel = DistributedDataParallel
    if mode in ("stead", "own"):
        # Operations leave no asynchronous events of gloo's in profiles.
        distributed_test.PROFILING_SUPPORTED_BACKENDS.remove("gloo")
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.remove("gloo")
    for feature in ("ddp", "subgroup"):
        DistTestCases.backend_feature[feature].add("torsh")


def _test_case() -> Any:
    from torch.testing._internal.distributed import distributed_test

    base: Any = distributed_test.DistributedTest._DistTestBase
    fork = multiprocessing.get_context("fork").Process

    class TorchSuite(distributed_test.TestDistBackend, base):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(fork)  # a spawned process would load torch for each test

    return TorchSuite


def _run_mode(mode: str, ranks: int, patterns: list[str], report: Path) -> Outcomes:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("barrier", "test_dir", "init_dir"):
            (Path(folder) / name).mkdir()
        environ = {
            **os.environ,
            "BACKEND": "torsh" if mode == "torsh" else "gloo",
            "TORSH_SUITE_MODE": mode,
            "TORSH_TORCH_BACKEND": "torsh" if mode in ("stead", "own") else "",
            "WORLD_SIZE": str(ranks),
            "TEMP_DIR": folder,
            "INIT_METHOD": f"file://{folder}/init_dir/shared",
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "100",
        }
        command = [sys.executable, "-P", "-m", "support.torch_suite", "--run", str(report)]
        log = Path(f"{report}.log")
        with log.open("w") as out:
            subprocess.run(
                [*command, *patterns], env=environ, stdout=out, stderr=out, timeout=_LIMIT
            )
    if not report.exists():
        raise SystemExit(f"the suite for {mode} ended early:\n{log.read_text()[-2000:]}")
    outcomes: Outcomes = json.loads(report.read_text())
    return outcomes


def worse(found: dict[str, Outcomes]) -> list[str]:
    """The tests that pass on gloo and not on torsh, one line each."""

    def outcome(mode: str, name: str) -> str:
        return str(found.get(mode, {}).get(name, ["not run"])[0])

    def is_worse(name: str) -> bool:
        if "own" in found:
            return outcome("own", name) != "passed" and name not in LEFT_OUT
        ours = outcome("torsh", name), outcome("stead", name)
        return ours[0] == "failed" or "passed" not in ours

    return [
        f"{name}: {', '.join(f'{mode} {outcome(mode, name)}' for mode in found)}"
        for name in found["gloo"]
        if outcome("gloo", name) == "passed" and is_worse(name)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="where reports and logs stay")
    parser.add_argument("--own", action="store_true", help="our DDP in the place of torch's")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("patterns", nargs="*", default=["test_*"])
    given = parser.parse_args()
    if given.run:
        run(given.patterns, given.run)
        return 0
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        outcomes = {
            mode: _run_mode(mode, given.ranks, given.patterns, folder / f"{mode}.json")
            for mode in (OWN_MODES if given.own else MODES)
        }
    for mode, found in outcomes.items():
        kinds = [outcome for outcome, *_ in found.values()]
        print(mode, {kind: kinds.count(kind) for kind in sorted(set(kinds))})
    lines = worse(outcomes)
    print(*lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
