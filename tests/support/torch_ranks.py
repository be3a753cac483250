"""Ranks of a torch.distributed group, each a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from support.forked import Raised, run_forked


def run_ranks(
    ranks: int, body: Callable[[int], Any], backend: str = "torsh", timeout: float = 20.0
) -> list[Any]:
    """body(rank) in forked processes with a default group each; what each rank returned, or
    Raised(error). torch is loaded once, before they part.
    """
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        return run_forked(ranks, lambda rank: _be_rank(rank, ranks, body, backend, folder, timeout))


def passed(results: list[Any]) -> list[Any]:
    """The results, of which none is a failure."""
    for rank, result in enumerate(results):
        assert not isinstance(result, Raised), f"rank {rank}: {result.error.trace}"
    return results


def _be_rank(
    rank: int, ranks: int, body: Callable[[int], Any], backend: str, folder: str, timeout: float
) -> Any:
    import torch.distributed as dist

    import torsh_runtime.integrations.torch  # noqa: F401

    dist.init_process_group(
        backend,
        store=dist.FileStore(f"{folder}/store", ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=timeout),
    )
    result = body(rank)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result
