"""Checks that ranks have equal states where one state is saved for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
from xxhash import xxh3_64

from torsh_runtime.arrays.raw import copy_out, dtype_name
from torsh_runtime.checkpoint.tensor_file import ITEMSIZES
from torsh_runtime.parallel.state import Contents

_MOST_BYTES = 1 << 20
"""Bytes of each array that are compared: states that diverge soon differ everywhere."""


def digests(contents: Contents) -> dict[str, str]:
    """Return a digest of each state that is saved once for all ranks, by name."""
    found = {}
    for name in contents.stateful:
        digest = xxh3_64(json.dumps(contents.values[name], sort_keys=True).encode())
        for path, tensor in contents.tensors.items():
            if path == name or path.startswith(f"{name}/"):
                digest.update(_bytes_of(tensor.values))
        found[name] = digest.hexdigest()
    return found


def as_number(own: Mapping[str, str]) -> int:
    """Return one number for all digests, which ranks can compare."""
    return xxh3_64(json.dumps(own, sort_keys=True).encode()).intdigest() >> 1


def difference(told: Sequence[Mapping[str, str]]) -> str:
    """Return an error message that names a state in which ranks differ; "" if there is none."""
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
