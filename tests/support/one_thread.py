"""Loads NumPy so that it computes on one thread in this process and in its forks.

Ranks are often more than processors here. OpenBLAS has a thread for each processor in each of them,
and these threads wait for work in a loop, which takes most of the processors' time.
"""

from __future__ import annotations

import os

_VARIABLE = "OPENBLAS_NUM_THREADS"


def load_numpy() -> None:
    """Import NumPy with a variable that OpenBLAS reads then, and that no other process gets."""
    given = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    import numpy  # noqa: F401

    del os.environ[_VARIABLE]
    if given is not None:
        os.environ[_VARIABLE] = given
