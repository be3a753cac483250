"""One rank with a GPU: gpu_rank.py FOLDER calls the function that FOLDER/call names, of gpu_bodies
or one of its neighbours, and writes what it returns to a file with the rank's number.

NCCL refuses two ranks of one host on one GPU. Where there are fewer GPUs than ranks each rank says
that it is another host, so that they reach each other through sockets, as nodes do.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from support import gpu_bodies, gpu_compression, gpu_services, gpu_waits
from support.forked import tried

from torshrun.topology.gpus import visible


def main() -> None:
    folder = Path(sys.argv[1])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    gpus = len(visible(os.environ))
    if ranks > gpus:
        os.environ["NCCL_HOSTID"] = f"host of rank {rank}"
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    name, arguments = pickle.loads((folder / "call").read_bytes())  # noqa: S301  (our parent's)
    places = (gpu_bodies, gpu_compression, gpu_services, gpu_waits)
    body = next(getattr(each, name) for each in places if hasattr(each, name))
    result = tried(lambda _: body(rank % gpus, *arguments), rank)
    partial = folder / f"{rank}.partial"
    partial.write_bytes(pickle.dumps(result))
    partial.rename(folder / str(rank))


if __name__ == "__main__":
    main()
