"""An extension needs a library of CUDA that is not on the path of one rank.

culprit: 1
kind: import | file
hint: libcudart_of_nobody, LD_LIBRARY_PATH|install|library
"""

import ctypes
import os

import numpy as np

import torsh_runtime as tr


def load_kernels() -> None:
    try:
        ctypes.CDLL("libcudart_of_nobody.so.12")
    except OSError as error:
        raise ImportError(str(error)) from None  # as the loader of an extension module says it


def main() -> None:
    if os.environ["LOCAL_RANK"] == "1":
        load_kernels()
    tr.init_process_group(timeout=30)
    tr.all_reduce(np.ones(4))


main()
