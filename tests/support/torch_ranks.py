"""Ranks of a torch.distributed group, each a process of its own."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from support.worlds import ended


class Failed(NamedTuple):
    """What a rank's function raised; "killed" if its process was killed."""

    kind: str
    text: str
    trace: str


def run_ranks(
    ranks: int, body: Callable[[int], Any], backend: str = "torsh", timeout: float = 20.0
) -> list[Any]:
    """body(rank) in forked processes with a default group each; what each rank returned, Failed
    where it raised or was killed. torch is loaded once, before they part.
    """
    import torch  # noqa: F401

    with tempfile.TemporaryDirectory() as folder:
        children = [
            _start(rank, lambda rank: _be_rank(rank, ranks, body, backend, folder, timeout))
            for rank in range(ranks)
        ]
        return [_result(*child) for child in children]


def passed(results: list[Any]) -> list[Any]:
    """The results, of which none is a failure."""
    for rank, result in enumerate(results):
        assert not isinstance(result, Failed), f"rank {rank}: {result.trace}"
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


def _start(rank: int, body: Callable[[int], Any]) -> tuple[int, int]:
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return reader, child
    try:
        data = pickle.dumps(body(rank))
    except BaseException as error:
        data = pickle.dumps(Failed(type(error).__name__, str(error), traceback.format_exc()))
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(data)
    sys.stdout.flush()
    os._exit(0)


def _result(reader: int, child: int) -> Any:
    with Path(f"/dev/fd/{reader}").open("rb") as pipe:
        data = pipe.read()
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if data:
        return pickle.loads(data)  # noqa: S301  (our own child)
    return Failed("killed", ended(status), ended(status))
