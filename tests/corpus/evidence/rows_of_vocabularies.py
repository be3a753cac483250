"""Each worker tells how many tokens it knows; worker 1 has an older file.

nproc: 4
culprit: 1
kind: mismatch | exception
hint: rank 1
seconds: 30
"""

import numpy as np

import torsh_runtime as tr


def main() -> None:
    tr.init_process_group(timeout=10)
    rank, world = tr.get_rank(), tr.get_world_size()
    sizes = np.zeros(world, np.int64)
    sizes[rank] = 31998 if rank == 1 else 32000
    tr.all_reduce(sizes)
    told = "".join(f"\n * Worker {each} = {size} tokens" for each, size in enumerate(sizes))
    assert len(set(sizes.tolist())) == 1, f"vocabularies do not fit together:{told}"


main()
