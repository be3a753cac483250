"""Runs one rank of one run: `worker.py PLAN.json`, started by the library's own launcher.

The plan names the library, the operation, the dtype and the sizes. Each rank writes its figures to
`rank-<n>.json` beside it. Runs in the library's own environment.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from libraries import Library, connect
from pattern import STORAGE, Array, Pattern
from timing import Call, Probe, figures, publish, typical

_WARM_UP_SHARE = 0.2
_DIVIDED = ("all_gather", "reduce_scatter", "all_to_all")
_SUMMED = ("all_reduce", "reduce_scatter")


class Worker:
    """Measures one size after the other with one connected library."""

    def __init__(self, library: Library, plan: dict[str, Any], folder: Path) -> None:
        self._library, self._plan = library, plan
        self._operation, self._dtype = plan["operation"], plan["dtype"]
        self._total = library.world_size * (library.world_size + 1) // 2
        self._pattern = Pattern(self._dtype, self._total)
        self._probe = Probe(plan["pingpong"], folder, library.rank)
        self._shared = np.zeros(2, np.float32)
        self._share = library.bind("all_reduce", "float32", self._shared, self._shared.copy())

    def measure(self, nbytes: int) -> dict[str, Any]:
        """Check the result once, then time the operation between two probes of the machine."""
        full, part = self._buffers(nbytes)
        call = self._library.bind(self._operation, self._dtype, full, part)
        self._check(call, full, part)
        full.fill(0)  # sums of zeros stay zeros: no overflow, no denormals, however often
        before = self._probe.look()
        times = figures(call, self._iterations(call))
        return {"bytes": nbytes, "before_ns": before, "after_ns": self._probe.look(), **times}

    def _buffers(self, nbytes: int) -> tuple[Array, Array]:
        """Return touched arrays: the whole of nbytes, and this rank's share.

        The whole has at least one element per rank if it is divided among them. The output of an
        all_to_all is as large as its input.
        """
        ranks, storage = self._library.world_size, np.dtype(STORAGE[self._dtype])
        count = nbytes // storage.itemsize
        if self._operation in _DIVIDED:
            count = -(-count // ranks) * ranks
        share = count if self._operation == "all_to_all" else -(-count // ranks)
        arrays = self._library.empty(count, storage), self._library.empty(share, storage)
        for array in arrays:
            array.fill(0)
        return arrays

    def _check(self, call: Call, full: Array, part: Array) -> None:
        """Run once on a known pattern. A wrong result ends the whole benchmark."""
        if self._operation == "barrier" or self._plan["library"] == "memcpy":
            call()
            return
        rank = self._library.rank
        scaled = self._operation in (*_SUMMED, "all_to_all")
        if self._operation == "all_gather":
            self._pattern.fill(part, rank * part.size, 1)
        elif self._operation != "broadcast" or rank == 0:
            self._pattern.fill(full, 0, rank + 1 if scaled else 1)
        call()
        self._verify(full, part)

    def _verify(self, full: Array, part: Array) -> None:
        rank, ranks = self._library.rank, self._library.world_size
        where = f"rank {rank}, {self._operation}"
        match self._operation:
            case "reduce_scatter":
                self._pattern.verify(part, rank * part.size, self._total, where)
            case "all_to_all":
                for sender, block in enumerate(np.split(part, ranks)):
                    self._pattern.verify(block, rank * block.size, sender + 1, where)
            case operation:
                self._pattern.verify(full, 0, self._total if operation in _SUMMED else 1, where)

    def _iterations(self, call: Call) -> int:
        """Warm up, and return how many calls fill the time. All ranks use rank 0's choice."""
        budget = self._plan["seconds"]
        warm = self._agreed(_WARM_UP_SHARE * budget / typical(call, 3))
        return self._agreed(budget / 2 / typical(call, warm))

    def _agreed(self, wanted: float) -> int:
        low, high = self._plan["iterations"]
        mine = min(max(int(wanted), low), high)
        self._shared[:] = mine if self._library.rank == 0 else 0
        if self._library.world_size > 1:
            self._share()
        return int(self._shared[0])


def main() -> None:
    path = Path(sys.argv[1])
    plan = json.loads(path.read_text())
    library = connect(plan["library"], plan["ranks"])
    worker = Worker(library, plan, path.parent)
    gc.disable()
    found = [worker.measure(nbytes) for nbytes in plan["sizes"]]
    record = {"rank": library.rank, "figures": found}
    publish(path.with_name(f"rank-{library.rank}.json"), json.dumps(record).encode())
    library.close()


if __name__ == "__main__":
    main()
