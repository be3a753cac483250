"""One rank of a world of processes: runs cases of the suite, each in a group of its own.

rank_main.py KIND RANK RANKS STORE SECRET RESULTS CASE...: RANK is "mpi" where MPI says it; RESULTS
is a directory, which gets a file of this rank with a line of JSON for each case.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

from support.suite import CASES, FATAL_CASES
from support.suite.cases import LONG

from torsh_runtime.backends.base import Backend
from torsh_runtime.store.client import StoreClient


def main() -> None:
    kind, where, ranks, endpoint, secret, results, *names = sys.argv[1:]
    rank = _mpi_rank() if where == "mpi" else int(where)
    with (
        StoreClient.connect(endpoint, bytes.fromhex(secret), LONG) as store,
        Path(results, str(rank)).open("w", buffering=1) as file,
    ):
        for number, name in enumerate(names):
            place = rank if number % 2 else int(ranks) - 1 - rank  # a group has an order of its own
            error = _run(kind, store.scoped(f"{number}/"), place, int(ranks), name)
            file.write(json.dumps([name, error]) + "\n")


def _run(kind: str, store: StoreClient, rank: int, ranks: int, name: str) -> str:
    try:
        backend = _backend(kind).connect(store, rank, ranks, LONG)
        try:
            (CASES | FATAL_CASES)[name].body(backend)
        finally:
            backend.close()
    except BaseException:
        return f"rank {rank}: {traceback.format_exc()}"
    return ""


def _backend(kind: str) -> type[Backend]:
    if kind == "gloo":
        from torsh_runtime.backends.library.gloo import GlooBackend

        return GlooBackend
    from torsh_runtime.backends.library.mpi import MpiBackend

    return MpiBackend


def _mpi_rank() -> int:
    from mpi4py import MPI

    return MPI.COMM_WORLD.Get_rank()


if __name__ == "__main__":
    main()
