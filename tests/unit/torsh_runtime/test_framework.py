"""Finding the framework of a model: a tensor is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import torsh_runtime as tr
from torsh_runtime import nn
from torsh_runtime.framework import framework_of, framework_of_model
from torsh_runtime.parallel.state.models import is_model

torch: Any = pytest.importorskip("torch")
TENSORS = (torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), nn.Tensor(np.zeros(2)))


def test_models_and_tensors_have_one_framework() -> None:
    assert framework_of_model(torch.nn.Linear(2, 2)) is framework_of(TENSORS[0])
    assert framework_of_model(nn.Linear(2, 2)) is framework_of(TENSORS[2])


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: type(tensor).__module__)
def test_a_tensor_is_no_model(tensor: Any) -> None:
    assert not is_model(tensor)
    with pytest.raises(TypeError, match="is a tensor and no model: pass a"):
        framework_of_model(tensor)


@pytest.mark.parametrize("wrap", [tr.DistributedDataParallel, tr.FullyShardedDataParallel])
def test_wrappers_refuse_tensors(wrap: Callable[[Any], object]) -> None:
    for tensor in TENSORS:
        with pytest.raises(TypeError, match="is a tensor and no model"):
            wrap(tensor)
