"""Who imports whom, and what a bare import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(
        subprocess.run(
            [sys.executable, "-P", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
    )


def test_the_import_rules_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run(
        [lint, "--no-logo", "--config", ROOT / "pyproject.toml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("heavy", ["numpy", "asyncio", "torsh_runtime.backends"])
def test_importing_the_runtime_loads_nothing_heavy(heavy: str) -> None:
    assert heavy not in loaded_by("import torsh_runtime")


@pytest.mark.parametrize("other", ["torch", "cupy", "ml_dtypes", "torsh_runtime.comm"])
def test_models_load_numpy_alone(other: str) -> None:
    modules = loaded_by("import torsh_runtime as tr; tr.nn, tr.optim")
    assert {"numpy", "torsh_runtime.nn.tensor", "torsh_runtime.optim.adam"} <= modules
    assert other not in modules


def test_a_worker_joins_without_asyncio() -> None:
    modules = loaded_by("import torsh_runtime as tr; tr.init_process_group, tr.all_reduce")
    assert "torsh_runtime.bootstrap" in modules
    assert "asyncio" not in modules


@pytest.mark.parametrize("heavy", ["numpy", "asyncio", "psutil", "yaml", "ctypes", "grpc"])
def test_the_command_line_starts_light(heavy: str) -> None:
    assert heavy not in loaded_by("import torshrun.cli")


def test_no_python_below_the_bindings() -> None:
    below = ROOT.glob("torsh_runtime/csrc/*/**/*.[ch]pp")
    sources = [source for source in below if "bindings" not in source.parts]
    assert len(sources) > 5
    for source in sources:
        text = source.read_text()
        assert "Python.h" not in text, source
        assert "nanobind" not in text, source
