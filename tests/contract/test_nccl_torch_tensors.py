"""What is made of torch's tensors for NCCL and of what it gives back. The tensors say that they are
on a GPU; what torch does to them is what it does there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torsh_runtime.backends.base import PremulSum, Reduce, ReduceOp
from torsh_runtime.backends.library.operands import Parts
from torsh_runtime.backends.nccl.device import Framework, Operand, staging_of, whole_of
from torsh_runtime.backends.nccl.plans import Plan
from torsh_runtime.backends.nccl.reductions import Reduction
from torsh_runtime.backends.operation import Op

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
    device = SimpleNamespace(type="cuda", index=0)


def on_gpu(*values: float) -> Any:
    return torch.tensor(values, dtype=torch.float32).as_subclass(OnGpu)


def parts(*tensors: Any) -> Parts[Operand]:
    operands = [Operand(each) for each in tensors]
    return Parts(operands, [each.size for each in operands], True)


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


@pytest.mark.torch
def test_equal_parts_of_one_memory_are_one_tensor() -> None:
    whole = on_gpu(0, 1, 2, 3, 4, 5, 6, 7)
    found = whole_of(parts(whole[2:4], whole[4:6], whole[6:8]))
    assert found is not None
    assert found.flat.tolist() == [2, 3, 4, 5, 6, 7]
    found.flat[0] = 9
    assert whole[2] == 9


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["order", "apart", "strided"])
def test_other_parts_are_not(kind: str) -> None:
    whole = on_gpu(0, 1, 2, 3, 4, 5, 6, 7)
    given = {
        "order": [whole[2:4], whole[0:2]],
        "apart": [whole[2:4], whole[4:6].clone()],
        "strided": [whole[0:4:2], whole[4:8:2]],
    }
    assert whole_of(parts(*given[kind])) is None
    room, pieces = staging_of(parts(*given[kind]))
    pieces[1].fill_(3)
    assert room.flat[2:].tolist() == [3, 3]
    assert [len(piece) for piece in pieces] == [2, 2]


def plan(kind: str, *how: object) -> Plan:
    """The plan of an operation of two ranks on device 0, whose current stream is number 77."""
    cuda = SimpleNamespace(
        current_device=lambda: 0, current_stream=lambda device: SimpleNamespace(cuda_stream=77)
    )
    framework: Any = SimpleNamespace(torch=SimpleNamespace(strided=torch.strided, cuda=cuda))
    library: Framework = framework
    return Plan(print, how[0] if how else None, 0, 2, library, (11, 4))


@pytest.mark.torch
def test_a_plan_hands_plain_tensors_on() -> None:
    tensor = on_gpu(1, 2)
    ready = plan("all_reduce", "sum").ready(Op("all_reduce", tensor, tensor))
    assert ready is not None
    assert ready.arguments == (tensor, tensor, "sum")
    assert (ready.callers, ready.measured) == ((77,), (11, 2, 8))
    ready = plan("broadcast").ready(Op("broadcast", tensor, tensor, 1))
    assert ready is not None
    assert ready.arguments == (tensor, tensor, 1)
    gathered = on_gpu(0, 0, 0, 0)
    ready = plan("all_gather").ready(Op("all_gather", gathered, tensor))
    assert ready is not None
    assert (ready.arguments, ready.measured) == ((tensor, gathered), (11, 2, 8))


@pytest.mark.torch
def test_a_plan_leaves_other_tensors_to_the_long_way() -> None:
    wide, own = on_gpu(1, 2, 3, 4), on_gpu(1, 2)
    negative = torch.tensor([1 + 2j]).conj().imag.as_subclass(OnGpu)
    others = [wide[::2], on_gpu(), negative, torch.ones(2).to_sparse()]
    for tensor in others:
        assert plan("all_reduce", "sum").ready(Op("all_reduce", tensor, tensor)) is None
    for root in (2, -1, True):
        assert plan("broadcast").ready(Op("broadcast", own, own, root)) is None
    assert plan("all_gather").ready(Op("all_gather", own, own)) is None
    assert plan("reduce_scatter", "sum").ready(Op("reduce_scatter", own, own)) is None
    assert plan("all_gather").ready(Op("all_gather", wide.double(), own)) is None
