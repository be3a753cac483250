"""One shard of the text is in Latin-1.

culprit: 1
kind: encoding
hint: utf-8|encod|unicode
"""

import os
from pathlib import Path

import numpy as np

import torsh_runtime as tr


def main() -> None:
    rank = int(os.environ["RANK"])
    shard = Path(f"shard-{rank}.txt")
    shard.write_bytes("Straße und Café\n".encode("latin-1" if rank == 1 else "utf-8"))
    tr.init_process_group(timeout=30)
    with shard.open(encoding="utf-8") as lines:
        for line in lines:
            tr.all_reduce(np.array([len(line)]))


main()
