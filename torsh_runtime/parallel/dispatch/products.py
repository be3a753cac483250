"""Multiplies rows by the weights of their experts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torsh_runtime.parallel.dispatch.routing import Groups
from torsh_runtime.parallel.operations import JointOperation
from torsh_runtime.parallel.regions.arrays import Array, empty

_ALIGNED = 8
"""Sizes that torch's grouped product takes are multiples of these elements, 16 bytes."""
_CAPABILITIES = (9, 10)
"""Compute capabilities for which torch has a kernel; on other GPUs it multiplies one group after
another, for which the processor waits."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupedLinear(JointOperation):
    """input (rows, in) @ weight[e]ᵀ (experts, out, in), where rows in succession are of expert e as
    `groups` tells: to (rows, out).
    """

    groups: Groups

    def forward(self, *arrays: Array) -> tuple[Array, Sequence[Array]]:
        rows, weight = arrays
        if product := grouped_product(rows, weight, self.groups):
            return product(rows, weight.swapaxes(-1, -2), offs=self.groups.ends), arrays
        result = empty(rows, (len(rows), weight.shape[1]))
        for expert, part in self._parts():
            result[part] = rows[part] @ weight[expert].T
        return result, arrays

    def backward(self, gradient: Array, *saved: Array) -> tuple[Array | None, ...]:
        rows, weight = saved
        if product := grouped_product(rows, weight, self.groups):
            return self._backward_at_once(product, gradient, rows, weight)
        for_rows, for_weight = empty(rows, rows.shape), empty(weight, weight.shape)
        for expert, part in self._parts():
            for_rows[part] = gradient[part] @ weight[expert]
            for_weight[expert] = gradient[part].T @ rows[part]
        return for_rows, for_weight

    def _backward_at_once(
        self, product: Callable[..., Any], gradient: Any, rows: Array, weight: Array
    ) -> tuple[Array, Array]:
        gradient, ends = gradient.contiguous(), self.groups.ends
        for_weight = product(gradient.T, rows, offs=ends)
        for expert, count in enumerate(self.groups.counts):
            if not count:
                for_weight[expert] = 0
        return product(gradient, weight, offs=ends), for_weight

    def _parts(self) -> Iterator[tuple[int, slice]]:
        start = 0
        for expert, count in enumerate(self.groups.counts):
            yield expert, slice(start, start + count)
            start += count


def grouped_product(rows: Any, weight: Any, groups: Groups) -> Callable[..., Any] | None:
    """Return torch's product of all groups at once if it takes such operands, else None."""
    if groups.ends is None or not len(rows):
        return None
    torch: Any = sys.modules["torch"]
    product: Callable[..., Any] | None = getattr(torch.nn.functional, "grouped_mm", None)
    is_fit = rows.dtype == weight.dtype == torch.bfloat16 and has_grouped_product(rows.device)
    is_aligned = all(
        each.is_contiguous() and each.data_ptr() % 16 == 0 and each.shape[-1] % _ALIGNED == 0
        for each in (rows, weight)
    )
    return product if is_fit and is_aligned and weight.shape[1] % _ALIGNED == 0 else None


def has_grouped_product(device: Any) -> bool:
    """Return whether torch has a kernel for grouped products on a device."""
    torch: Any = sys.modules["torch"]
    is_cuda = device.type == "cuda" and torch.version.hip is None
    return is_cuda and torch.cuda.get_device_capability(device)[0] in _CAPABILITIES
