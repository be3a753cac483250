"""torch's own tests of fault tolerance, run on gloo and on torsh, and compared.

`python -m support.torch_fault_tolerance FILE [PATTERN...]` runs the tests of torch's
test/distributed/test_c10d_fault_tolerance.py, which wheels lack, for the backends "gloo" and
"torsh" on CPUs. It prints for each test what became of it, and fails unless every test that passes
on gloo passes on torsh. It needs torch 2.14 and expecttest.
"""

from __future__ import annotations

import argparse
import fnmatch
import multiprocessing
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

from support.torch_suite import Results

BACKENDS = ("gloo", "torsh")


def load(file: Path) -> ModuleType:
    """Load the file of torch's tests; its ranks are forked, for spawned ones would load torch."""
    from torch.testing._internal import common_distributed

    case: Any = common_distributed.MultiProcessTestCase
    fork = multiprocessing.get_context("fork").Process
    case._spawn_processes = lambda self: self._start_processes(fork)
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    sys.modules[file.stem] = module
    exec(compile(file.read_text(), file, "exec"), vars(module))
    return module


def outcomes(module: Any, backend: str, patterns: list[str]) -> dict[str, str]:
    """Run the tests that match for the backend, and return what became of each."""
    case = module._make_fault_tolerance_test_class(backend, "cpu")
    case.__module__ = module.__name__
    names = unittest.TestLoader().getTestCaseNames(case)
    chosen = [name for name in names if any(fnmatch.fnmatch(name, p) for p in patterns)]
    runner = unittest.TextTestRunner(resultclass=Results, verbosity=2)
    result: Any = runner.run(unittest.TestSuite(case(name) for name in chosen))
    return {name: outcome for name, (outcome, *_) in result.outcomes.items()}


def main() -> int:
    """Run the tests, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="test_c10d_fault_tolerance.py of torch's source")
    parser.add_argument("patterns", nargs="*", default=["test_*"], help="names of tests")
    given = parser.parse_args()
    import torch.distributed as dist

    if not hasattr(dist, "_reconfigure"):
        parser.error("this torch has no functions for fault tolerance: install torch 2.14 or later")
    module = load(given.file)
    found = {backend: outcomes(module, backend, given.patterns) for backend in BACKENDS}
    for name, on_gloo in found["gloo"].items():
        print(f"{name:50} {on_gloo:8} {found['torsh'][name]}")
    worse = [
        name
        for name, on_gloo in found["gloo"].items()
        if on_gloo == "passed" and found["torsh"][name] != "passed"
    ]
    return 1 if worse or "passed" not in found["gloo"].values() else 0


if __name__ == "__main__":
    sys.exit(main())
