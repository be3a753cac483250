"""What a test has left in /dev/shm is told from what other runs have there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.named_memory import SHARED, held_by_others, named_memory

HOLDER = """
import mmap, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(descriptor, 4096)
if sys.argv[2] == "mapped":
    os.close(descriptor)
if os.fork():  # the child is nobody's then
    os._exit(0)
print("holds it", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path() -> Iterator[Path]:
    path = SHARED / f"torsh-test-{os.urandom(8).hex()}"
    path.write_bytes(bytes(4096))
    yield path
    path.unlink()


def test_what_nobody_holds_is_a_tests_own(path: Path) -> None:
    assert str(path) in named_memory()
    assert held_by_others({str(path)}) == set()


def test_what_this_process_and_its_children_hold_is_a_tests_own(path: Path) -> None:
    with path.open(), subprocess.Popen(["sleep", "60"], stdin=path.open()) as child:
        try:
            assert held_by_others({str(path)}) == set()
        finally:
            child.kill()


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_what_another_run_holds_is_not(path: Path, how: str) -> None:
    words = [sys.executable, "-c", HOLDER, str(path), how]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "holds it\n"
        holder.wait()
        assert held_by_others({str(path)}) == {str(path)}
        assert held_by_others(set()) == set()
