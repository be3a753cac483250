"""What is made of torch's tensors for NCCL and of what it gives back. The tensors say that they are
on a GPU; what torch does to them is what it does there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.nccl.device import Operand
from torsh_runtime.backends.nccl.reductions import Reduction

torch = pytest.importorskip("torch")
CASES: list[tuple[str, Reduce, list[Any], list[Any], list[Any]]] = [
    ("int16", ReduceOp.SUM, [30_000, -5], [30_000, 2], [-5536, -3]),
    ("int16", ReduceOp.AVG, [30_000, -5], [30_000, 2], [-2768, -1]),
    ("uint16", ReduceOp.SUM, [65_535, 7], [2, 4], [1, 11]),
    ("uint16", ReduceOp.AVG, [65_535, 7], [4, 4], [1, 5]),
    ("bool", ReduceOp.BXOR, [True, True, False], [True, False, False], [False, True, False]),
    ("complex64", ReduceOp.SUM, [1 + 2j], [3 - 1j], [4 + 1j]),
    ("complex128", PremulSum(1.0), [1 + 2j], [3 - 1j], [4 + 1j]),
    ("bfloat16", ReduceOp.SUM, [1.5], [2.0], [3.5]),
]


class OnGpu(torch.Tensor):  # type: ignore[name-defined, misc]
    is_cuda = True


@pytest.mark.torch
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("dtype", "op", "mine", "yours", "wanted"), CASES)
def test_a_sum_of_two_ranks(
    dtype: str, op: Reduce, mine: Any, yours: Any, wanted: Any, strided: bool
) -> None:
    kind = getattr(torch, dtype)
    own = (
        torch.zeros(len(mine), 2, dtype=kind)[:, 0] if strided else torch.zeros(len(mine)).to(kind)
    )
    own.copy_(torch.tensor(mine).to(kind))
    own, other = own.as_subclass(OnGpu), torch.tensor(yours).to(kind).as_subclass(OnGpu)
    values, theirs = Operand(own), Operand(other)
    reduction = Reduction(SimpleNamespace(), values.dtype.name, op, 2)
    wire = reduction.wire(values)
    wire += reduction.wire(theirs)
    reduction.finish(values, wire)
    assert own.tolist() == wanted


@pytest.mark.torch
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_floats_of_8_bits_are_moved_as_bytes(dtype: str, strided: bool) -> None:
    kind = getattr(torch, dtype)
    own = torch.ones(3, 2).to(kind)[:, 0] if strided else torch.ones(3).to(kind)
    values = Operand(own.as_subclass(OnGpu))
    assert values.bytes.dtype is torch.uint8
    values.bytes.copy_(torch.tensor([1.0, 2.0, 4.0]).to(kind).view(torch.uint8))
    values.finish()
    assert own.float().tolist() == [1, 2, 4]
