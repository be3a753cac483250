"""The image of the second node has an older package than the script needs.

nproc: 1
nnodes: 2
culprit: 1
kind: version | import
hint: version|install|Python|environment
seconds: 30
"""

import os

import numpy as np

import torsh_runtime as tr

FOUND = {"0": (0, 22), "1": (0, 19)}


def require(found: tuple[int, int]) -> None:
    """As packages check each other."""
    if found < (0, 20):
        version = ".".join(map(str, found))
        raise ImportError(f"tokenizers>=0.20 is required, but found tokenizers=={version}")


def main() -> None:
    tr.init_process_group(timeout=20)
    require(FOUND[os.environ["GROUP_RANK"]])
    tr.all_reduce(np.ones(10))


main()
