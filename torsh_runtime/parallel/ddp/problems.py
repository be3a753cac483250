"""Says what is wrong with the gradients of a backward pass, in texts for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torsh_runtime.errors import GradientError


def check_broken_off(passes: NDArray[np.uint8]) -> None:
    """Raise GradientError if some ranks have broken off more backward passes than others."""
    least = int(passes.min())
    found = {int(rank): int(passes[rank]) - least for rank in np.flatnonzero(passes > least)}
    if found:
        raise GradientError(
            {
                rank: f"broke off {more} backward pass(es) that others ended, by an exception, and "
                f"is as many batches ahead: let such a rank end, or have all ranks skip the batch"
                for rank, more in found.items()
            }
        )


def why_late(times: int) -> str:
    """Return why a gradient that comes for the `times`-th time came after it was placed."""
    if times > 1:
        return (
            "got its gradient again after it was taken for complete, as in reentrant checkpoints "
            "that share it: set static_graph=True"
        )
    return (
        "got a gradient, and the model's outputs do not depend on it: return all that the loss is "
        "made of, in lists, tuples, dicts or dataclasses, or set overlap_communication=False"
    )


def joined(texts: Sequence[str], separator: str, most: int = 5) -> str:
    """Join the first `most` texts, and say how many more there are."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more
