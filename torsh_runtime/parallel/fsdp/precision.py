"""Chooses the dtypes in which parameters of one kind are kept, computed with and averaged."""

from __future__ import annotations

from dataclasses import dataclass

from torsh_runtime.parallel.fsdp.config import MixedPrecision


@dataclass(frozen=True, slots=True)
class Precision:
    """Names the dtypes of a parameter's computations."""

    own: str
    """Dtype in which an optimizer changes the parameters."""
    computed: str
    """In forward and backward passes."""
    reduced: str
    """Dtype of gradients while they are averaged."""
    gradients: str
    """Dtype of the averages that an optimizer gets."""


def precision_of(own: str, mixed: MixedPrecision) -> Precision:
    """Return the precision for parameters of dtype `own`."""
    if not own.startswith(("float", "bfloat")):
        return Precision(own, own, own, own)
    computed: str = mixed.param_dtype or own
    reduced: str = mixed.reduce_dtype or computed
    return Precision(own, computed, reduced, reduced if mixed.keep_low_precision_grads else own)
