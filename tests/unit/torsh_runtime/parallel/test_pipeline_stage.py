"""What stages say of models that return something else than tensors."""

from __future__ import annotations

import numpy as np
import pytest

from torsh_runtime import nn
from torsh_runtime.parallel.pipeline.autograd import autograd_of
from torsh_runtime.parallel.pipeline.stage import Stage


def ones(*shape: int) -> nn.Tensor:
    return nn.Tensor(np.ones(shape))


def stage(loss: object = None) -> Stage:
    module = nn.Linear(2, 2)
    return Stage(3, module, autograd_of(module), lambda *_: loss, checkpoints=False)


@pytest.mark.parametrize("output", [{}, [ones(2)], 5, None], ids=str)
def test_layers_return_tensors(output: object) -> None:
    text = f"stage 3 returned a {type(output).__name__}: layers of a pipeline return a tensor"
    with pytest.raises(TypeError, match=text):
        stage().sent((ones(2), output), ())


@pytest.mark.parametrize(
    ("loss", "text"), [(3.0, "float"), (ones(4), "tensor of shape \\(4,\\)"), (None, "NoneType")]
)
def test_a_loss_is_a_tensor_of_one_number(loss: object, text: str) -> None:
    with pytest.raises(ValueError, match=f"loss_fn returned a {text}"):
        stage(loss).loss(ones(4), ones(4))


def test_one_number_may_have_any_shape() -> None:
    assert stage(ones(1, 1)).loss(None, None).shape == (1, 1)
