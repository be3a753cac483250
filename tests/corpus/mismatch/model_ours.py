"""One rank of three has a layer more in its configuration.

nproc: 3
culprit: 2
kind: mismatch
hint: rank 2|ranks? 2, parameter|model|weight
"""

import os

import torsh_runtime as tr
from torsh_runtime import nn


def main() -> None:
    tr.init_process_group(timeout=20)
    layers = [nn.Linear(8, 8) for _ in range(3 if os.environ["RANK"] == "2" else 2)]
    model = tr.DistributedDataParallel(nn.Sequential(*layers))
    model(nn.randn(4, 8)).sum().backward()


main()
