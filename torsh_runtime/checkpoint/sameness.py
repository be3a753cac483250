"""Whether ranks have the same of what is kept once for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from xxhash import xxh3_64

from torsh_runtime.arrays.raw import copy_out, dtype_name
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.parallel.state import Contents

_MOST_BYTES = 1 << 20
"""Of an array that are looked at: ranks whose states part differ everywhere soon."""


def digests(contents: Contents) -> dict[str, str]:
    """Of the state of each thing with a state_dict() of which there is one for all ranks."""
    found = {}
    for name in contents.stateful:
        digest = xxh3_64(json.dumps(contents.values[name], sort_keys=True).encode())
        for path, tensor in contents.tensors.items():
            if path == name or path.startswith(f"{name}/"):
                digest.update(_bytes_of(tensor.values))
        found[name] = digest.hexdigest()
    return found


def as_number(own: Mapping[str, str]) -> int:
    """All of them as one, for ranks to compare."""
    return xxh3_64(json.dumps(own, sort_keys=True).encode()).intdigest() >> 1


def difference(told: Sequence[Mapping[str, str]]) -> str:
    """What to tell of a thing whose state ranks have differently; "" if there is none."""
    first: dict[str, tuple[str, int]] = {}
    for rank, own in enumerate(told):
        for name, digest in own.items():
            other, who = first.setdefault(name, (digest, rank))
            if other != digest:
                return (
                    f"{name!r} has another state on rank {rank} than on rank {who}, and one state "
                    f"is kept for all ranks: put it in tr.checkpoint.PerRank(...), which keeps "
                    f"each rank's own, or have all ranks make the same calls of it with the same "
                    f"values"
                )
    return ""


def _bytes_of(values: object) -> bytes:
    flat = values.reshape(-1)  # type: ignore[attr-defined]
    width = ITEMSIZES.get(dtype_name(flat), 0)
    if not width:
        return b""
    part = flat[: _MOST_BYTES // width]
    memory = np.empty(int(part.shape[0]) * width, np.uint8)
    copy_out(part, memory)
    return memory.tobytes()
