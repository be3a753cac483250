"""Provides arrays in memory that the ranks of a node share."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from torsh_runtime.comm.default import default_group
from torsh_runtime.comm.group import ProcessGroup


def empty_shared(
    shape: int | Sequence[int], dtype: DTypeLike = "float32", group: ProcessGroup | None = None
) -> NDArray[Any]:
    """Return an uninitialised array of this rank, on which the group's collectives work in place.

    Within a node the ranks read and write each other's shared arrays directly, which saves the
    copies through buffers between them: large collectives of such arrays, and of contiguous parts
    of them, are about as fast as one memcpy. All ranks of the group must call this at the same
    time, with the same number of bytes. Elsewhere it is an array like any other; torch.from_numpy()
    makes a tensor of it. The system has its memory back when the array and all views of it are
    gone, but its addresses only when the group is: make it once and keep it.

    After a collective has failed the contents of the arrays are undefined, also of those that were
    only its input.

    Args:
        shape: The array's shape, or its length.
        dtype: A numpy dtype without objects.
        group: The process group; None is the default group.

    Returns:
        The array, of this shape and dtype.

    Raises:
        ValueError: For a negative size, too large an array or a dtype with objects.
        ConfigError: If there is no default group or this process is not in `group`; on all ranks,
            if they do not ask for the same number of bytes.
        BackendUnavailable: On all ranks, if some lack the memory; it names them.
        CommError: If the ranks' exchange fails. The group cannot be used afterwards.

    Example:
        ```python
        gradient = tr.empty_shared((1024, 1024))
        gradient[:] = 1
        tr.all_reduce(gradient)
        ```
    """
    members = group or default_group()
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = np.dtype(dtype)
    num_bytes = math.prod(sizes) * kind.itemsize
    if min(sizes, default=0) < 0 or num_bytes > sys.maxsize or kind.hasobject:
        raise ValueError(f"an array of shape {sizes} and dtype {kind} cannot be in shared memory")
    return np.ndarray(sizes, kind, members.shared_memory(num_bytes))
