"""Makes NumPy and torch compute on one thread in this process and in its forks.

Ranks are often more than processors here. OpenBLAS and OpenMP have a thread for each processor in
each of them, and these threads wait for work in a loop, which takes most of the processors' time.
"""

from __future__ import annotations

import os

_VARIABLE = "OPENBLAS_NUM_THREADS"


def compute_on_one_thread() -> None:
    """Load NumPy with one thread, and have torch use one when it is loaded: here and in programs
    that tests start, unless they clear the variable. torshrun sets it for workers, too.
    """
    load_numpy()
    os.environ["OMP_NUM_THREADS"] = "1"


def load_numpy() -> None:
    """Import NumPy with a variable that OpenBLAS reads then, and that no other process gets."""
    given = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    import numpy  # noqa: F401

    del os.environ[_VARIABLE]
    if given is not None:
        os.environ[_VARIABLE] = given
