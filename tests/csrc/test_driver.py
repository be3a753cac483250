"""The C++ core's own tests, with threads as ranks: plainly, under sanitizers, and for arm64."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).parents[2] / "scripts" / "sanitize"
_LACKS = 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "address", "thread", "arm64"])
def test_the_core_does_what_it_should(kind: str, request: pytest.FixtureRequest) -> None:
    soak = ["--soak"] if request.config.getoption("--soak") else []
    if kind == "arm64" and not soak:
        pytest.skip("takes minutes under qemu: with --soak, or scripts/sanitize arm64")
    if kind == "plain" and not soak:
        pytest.skip("the contract suites run the core as it is: with --soak, or scripts/sanitize")
    run = subprocess.run([_SCRIPT, kind, *soak], capture_output=True, text=True, check=False)
    if run.returncode == _LACKS:
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-10000:]
