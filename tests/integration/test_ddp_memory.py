"""DistributedDataParallel keeps no second copy of gradients, as the kernel counts memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support import ddp_memory
from support.forked import Raised
from support.worlds import run_processes


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["nn", pytest.param("torch", marks=pytest.mark.torch)])
def test_gradients_that_are_views_of_buckets_are_in_memory_once(framework: str) -> None:
    if framework == "torch":
        pytest.importorskip("torch")
    measure = getattr(ddp_memory, f"of_{framework}")
    # Each in processes of its own: the second would be given memory that the first has left.
    as_views, copied = (run_processes(2, lambda _, v=v: measure(v), 60.0) for v in (True, False))
    for result, copy in zip(as_views, copied, strict=True):
        assert not isinstance(result, Raised), result.error.args[0]
        assert not isinstance(copy, Raised), copy.error.args[0]
        own, shared = result
        # The buckets. A page that only one of the two ranks has touched yet counts whole for it.
        assert shared == pytest.approx(1.0, abs=0.3)
        assert own < 0.5  # of torch's fresh gradients, and gaps that the allocator leaves by them
        assert sum(copy) > 1.5  # a copy is seen: torch's own memory, or shared memory of nn's


def test_buckets_of_a_wrapper_that_is_gone_are_given_back() -> None:
    for left in run_processes(2, lambda _: ddp_memory.of_dropped(), 60.0):
        assert not isinstance(left, Raised), left.error.args[0]
        assert left < 0.5


@pytest.mark.torch
def test_torch_asks_for_huge_pages_from_the_groups_making_on() -> None:
    pytest.importorskip("torch")
    code = (
        "import os, torch, torsh_runtime as tr\n"
        "tr.init_process_group('single', rank=0, world_size=1)\n"
        "print(os.environ.get('THP_MEM_ALLOC_ENABLE'))"
    )
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert said.stdout == "1\n", said.stderr
