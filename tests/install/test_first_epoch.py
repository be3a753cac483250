"""README's way from a checkout and a wheel to trained epochs, as typed on a minimal Debian 12.

    scripts/test --soak -s tests/install/test_first_epoch.py

prints how many commands that takes, and how many seconds with all downloads. The wheel comes from
`scripts/wheels x86_64`; without it the test is skipped.
"""

from __future__ import annotations

import re
import time

import pytest
from support.bare_tree import CHECKOUT, bare_tree
from support.blocks import shown, worker_lines
from support.hosts import needs_hosts
from support.release import version

COMMANDS = shown("README.md", "python3 -m venv .venv").splitlines()
MOST_COMMANDS, MOST_SECONDS = 3, 120.0
NEEDED = "apt-get update && apt-get install -y --no-install-recommends python3-venv"
"""What the wheel needs by README's table, and a minimal Debian lacks."""

pytestmark = [needs_hosts, pytest.mark.slow]


@pytest.fixture(autouse=True)
def only_in_full_length(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("installs a system: only with --soak")


def test_three_commands_lead_to_a_trained_epoch_within_two_minutes() -> None:
    pattern = f"torshrun-{version()}-cp311-cp311-*_x86_64.whl"
    wheels = [*(CHECKOUT / "dist").glob(pattern)]
    if not wheels:
        pytest.skip(f"there is no dist/{pattern}: scripts/wheels x86_64")
    with bare_tree() as tree:
        tree.bring(wheels[0])
        assert tree.type(NEEDED).code == 0
        assert tree.type("command -v cc gcc g++ clang").code != 0
        start, output = time.monotonic(), ""
        for line in COMMANDS:
            done = tree.type(line, "PIP_NO_CACHE_DIR=1")
            output += done.output
            print(f"$ {line}\n{done.output}-- {time.monotonic() - start:.0f} s")
            assert done.code == 0
        seconds = time.monotonic() - start
    number = sum(len(re.split(r"&&|\|\|?|;", line)) for line in COMMANDS)
    print(f"{number} commands and {seconds:.0f} s, with downloads, to trained epochs")
    assert worker_lines(output) == worker_lines(shown("README.md", "$ torshrun --nproc-per-node 4"))
    assert number <= MOST_COMMANDS
    assert seconds <= MOST_SECONDS
