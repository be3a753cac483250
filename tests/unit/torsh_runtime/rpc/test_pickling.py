"""Calls as pickles with the arrays beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torsh_runtime.rpc.pickling import pack, unpack

try:
    import torch
except ImportError:  # the tests of tensors are skipped
    torch = None  # type: ignore[assignment]


def there_and_back(value: Any) -> tuple[Any, list[int]]:
    """What arrives, and the sizes of what goes beside the pickle."""
    pickled, buffers = pack(value)
    copies = [np.frombuffer(bytearray(each.raw()), np.uint8) for each in buffers]
    return unpack(pickled, copies), [each.nbytes for each in copies]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.zeros((0, 3), np.float32),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array(3.0),
    ],
    ids=["c", "fortran", "empty", "structured", "scalar"],
)
def test_arrays_go_beside_the_pickle(array: np.ndarray[Any, Any]) -> None:
    back, sizes = there_and_back({"x": [array]})
    arrived = back["x"][0]
    assert sizes == [array.nbytes]
    assert (arrived.dtype, arrived.shape) == (array.dtype, array.shape)
    assert (arrived == array).all()
    assert arrived.flags.writeable


def test_strided_arrays_arrive() -> None:
    array = np.arange(20)[::3]
    assert (there_and_back(array)[0] == array).all()


@pytest.mark.torch
@pytest.mark.skipif(torch is None, reason="needs torch")
def test_tensors_go_beside_the_pickle() -> None:
    names = ("float32", "bfloat16", "int64", "bool", "complex64", "float8_e4m3fn")
    for name in names:
        tensor = torch.arange(6).to(getattr(torch, name)).reshape(2, 3)
        back, sizes = there_and_back(tensor)
        assert sizes == [tensor.numel() * tensor.element_size()]
        assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        assert (back.to(torch.complex64) == tensor.to(torch.complex64)).all()


@pytest.mark.torch
@pytest.mark.skipif(torch is None, reason="needs torch")
def test_odd_tensors_arrive() -> None:
    leaf = torch.ones(3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    cases = [
        leaf,
        parameter,
        torch.arange(6.0).reshape(2, 3).t(),
        torch.empty(0, 4),
        torch.tensor(2.0),
        torch.view_as_complex(torch.ones(2, 2)).conj(),
        torch.ones(2, 2).to_sparse(),
    ]
    back, _ = there_and_back(cases)
    for before, after in zip(cases, back, strict=True):
        assert type(after) is type(before)
        assert after.requires_grad == before.requires_grad
        assert torch.equal(after.detach().to_dense(), before.detach().to_dense().resolve_conj())


@pytest.mark.torch
@pytest.mark.skipif(torch is None, reason="needs torch")
def test_a_module_arrives_with_its_parameters_beside_the_pickle() -> None:
    module = torch.nn.Linear(64, 64)
    back, sizes = there_and_back(module)
    assert sizes == [4 * 64 * 64, 4 * 64]
    assert torch.equal(back.weight, module.weight)
    assert back.weight.requires_grad


def test_the_same_array_twice_arrives_as_one() -> None:
    array = np.arange(3)
    (first, second), _ = there_and_back((array, array))
    assert first is second
