"""Whose functions an array wants, and what is said where bfloat16 is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import torsh_runtime as tr
from torsh_runtime.numpy_or_cupy import array_module, bfloat16


class CupyArray:
    pass


def test_arrays_of_cupy_want_cupy_once_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = SimpleNamespace(ndarray=CupyArray)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert array_module(CupyArray()) is cupy
    assert array_module(np.zeros(1)) is np


def test_arrays_of_numpy_want_no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert array_module(np.zeros(1)) is np


def by_torch() -> object:
    torch = pytest.importorskip("torch")
    from torsh_runtime.arrays.torch import host_view

    return host_view(torch.zeros(2, dtype=torch.bfloat16))


WANTS = {
    "itself": bfloat16,
    "tr.nn": lambda: tr.nn.tensor([1.0], dtype="bfloat16"),
    "compression": lambda: tr.compression.Cast("bfloat16"),
    "torch": by_torch,
}


@pytest.mark.parametrize("who", WANTS)
def test_without_ml_dtypes_whoever_wants_bfloat16_is_told_how_to_get_it(
    who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wants: Callable[[], object] = WANTS[who]
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(tr.BackendUnavailable, match="pip install ml_dtypes"):
        wants()
