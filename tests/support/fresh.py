"""Calls functions in an interpreter of their own, for what depends on what a process did before."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_PROGRAM = """
import pathlib, pickle, sys
from support.one_thread import load_numpy
load_numpy()
file = pathlib.Path(sys.argv[1])
function, arguments = pickle.loads(file.read_bytes())
file.write_bytes(pickle.dumps(function(*arguments)))
"""
_TESTS = str(Path(__file__).parents[1])


def call_in_new_interpreter(function: Callable[..., Any], *arguments: Any) -> Any:
    """What function(*arguments) returns there; the function belongs to a module of support."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "call")
        file.write_bytes(pickle.dumps((function, arguments)))
        environ = {**os.environ, "PYTHONPATH": _TESTS}  # not sys.path: a test may have changed it
        command = [sys.executable, "-P", "-c", _PROGRAM, str(file)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        return pickle.loads(file.read_bytes())  # noqa: S301  (our own child)
