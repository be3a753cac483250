"""README's commands, as typed, on a minimal Debian 12 with python3 alone. Half an hour, most of
it for installing: only with --soak.
"""

from __future__ import annotations

import re
import time

import pytest
from support.bare_tree import BareTree, bare_tree
from support.blocks import shown
from support.hosts import needs_hosts

USER = 1000
SUBSET = "PYTEST_ADDOPTS=tests/unit/torsh_runtime tests/contract/test_backend_native.py"

COMMANDS = {
    "Try it": shown("README.md", "scripts/setup && . .venv/bin/activate").strip(),
    "Development": shown("README.md", "scripts/test\n").strip(),
}

pytestmark = [needs_hosts, pytest.mark.slow]


@pytest.fixture(autouse=True)
def only_in_full_length(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("installs a system: only with --soak")


def missing_lines(page: str, output: str) -> list[str]:
    """Return the lines of a page that a job did not print, apart from numbers and the host.

    What the other ranks were doing, and which epoch was the last, depends on when the signal came.
    """

    def general(text: str) -> list[str]:
        found = re.sub(r"host \S+,", "host #,", text)
        return re.sub(r"\d+(?:\.\d+)?", "#", found).splitlines()

    lines = (line for line in general(page) if line.strip("… "))
    printed = general(output)
    return [
        line
        for line in lines
        if line not in printed and not line.startswith(("  ranks", "[#] resuming"))
    ]


def typed(tree: BareTree, line: str, *variables: str, user: int = 0) -> str:
    """What it printed; it must have ended well."""
    start = time.monotonic()
    done = tree.type(line, *variables, user=user)
    print(f"$ {line}\n{done.output[-6000:]}")
    print(f"-- {done.code}, {time.monotonic() - start:.0f} s, tree of {tree.bytes >> 20} MiB")
    assert done.code == 0
    return done.output


@pytest.mark.parametrize("section", ["Try it", "Development"])
def test_root_types_the_command(section: str) -> None:
    with bare_tree() as tree:
        output = typed(tree, COMMANDS[section], SUBSET)
        assert ("test accuracy" if section == "Try it" else " passed") in output
        if section == "Try it":
            kill = shown("README.md", "torshrun --nproc-per-node 4 --max-restarts")
            output = typed(tree, f". .venv/bin/activate\n{kill}")
            assert missing_lines(shown("README.md", "[0] epoch 100"), output) == []


@pytest.mark.parametrize("section", ["Try it", "Development"])
def test_another_user_is_told_what_root_has_to_type_first(section: str) -> None:
    with bare_tree(owner=USER) as tree:
        first = tree.type(COMMANDS[section], SUBSET, user=USER)
        print(first.output)
        assert first.code == 1
        (told,) = re.findall(r"As root, type\n\n +(.+)\n", first.output)
        typed(tree, told)
        output = typed(tree, COMMANDS[section], SUBSET, user=USER)
        assert ("test accuracy" if section == "Try it" else " passed") in output


def test_a_missing_compiler_or_header_is_one_line_of_pip() -> None:
    with bare_tree() as tree:
        typed(tree, "apt-get update && apt-get install -y --no-install-recommends python3-venv")
        wheel = ".venv/bin/pip wheel --no-deps --wheel-dir /tmp ."
        without = tree.type(f"python3 -m venv .venv && {wheel}")
        typed(tree, "apt-get install -y --no-install-recommends g++")
        headless = tree.type(wheel)
        for done, what in ((without, "there is no C++ compiler"), (headless, "has no Python.h")):
            print(done.output)
            assert done.code == 1
            (line,) = (line for line in done.output.splitlines()[-20:] if what in line)
            assert "apt-get install" in line
