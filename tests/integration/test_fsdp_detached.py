"""FullyShardedDataParallel over nodes with layers that compute with detached values, too."""

from __future__ import annotations

import copy
import importlib.util
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.forked import Raised
from support.hosts import needs_hosts, plugged, run_on_hosts

import torsh_runtime as tr

pytestmark = [needs_hosts, pytest.mark.netns]
WIDTH = 64
torch_only = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")


def stack(framework: Any, parameter: Any) -> Any:
    """Three units with a unit inside each, whose backward pass runs when the gradient of the outer
    one has come, and before the outer one's detached weight is used."""

    class Layer(framework.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.inner = parameter(), framework.Linear(WIDTH, WIDTH)
            self.inner.weight = parameter()

        def forward(self, inputs: Any) -> Any:
            inner = self.inner(inputs @ self.weight.detach())
            return inner + inputs @ self.weight

    return framework.Sequential(*[Layer() for _ in range(3)])


def with_torch(values: Any) -> tuple[Any, Any]:
    import torch

    model = stack(torch.nn, lambda: torch.nn.Parameter(torch.from_numpy(values())))
    inputs = torch.ones(4, WIDTH, dtype=torch.float64, requires_grad=True)
    return model.double(), inputs


def with_nn(values: Any) -> tuple[Any, Any]:
    model = stack(tr.nn, lambda: tr.nn.Parameter(tr.nn.Tensor(values())))
    return model, tr.nn.Tensor(np.ones((4, WIDTH)), requires_grad=True)


def difference(framework: str, storage: str, rank: int) -> float:
    """Return how far the gradient of the inputs is from that of the model in one process."""
    numbers = np.random.default_rng(0)
    make = {"torch": with_torch, "nn": with_nn}[framework]
    plain, inputs = make(lambda: numbers.normal(size=(WIDTH, WIDTH)) / 8)
    for _, each in plain.named_parameters():
        if len(each.shape) == 1:
            each.data[...] = 0.5
    model: Any = tr.FullyShardedDataParallel(copy.deepcopy(plain), min_num_params=1)
    memories = [memory for unit in model._sharding.units for _, memory in unit.laid]
    assert storage in {type(each).__name__ for each in memories}
    found = []
    for each in (plain, model):
        inputs.grad = None
        outputs = each(inputs)
        (outputs * outputs).sum().backward()
        found.append(np.array(inputs.grad.data))
    return float(np.abs(found[0] - found[1]).max() / np.abs(found[0]).max())


@pytest.mark.parametrize("framework", [pytest.param("torch", marks=torch_only), "nn"])
@pytest.mark.parametrize(
    ("storage", "places"), [("GatheredStorage", [0, 1]), ("NodeStorage", [0, 0, 1, 1])]
)
def test_detached_weights_keep_their_values_until_they_are_used(
    framework: str, storage: str, places: list[int]
) -> None:
    with plugged(2) as hosts:
        body = partial(difference, framework, storage)
        for result in run_on_hosts([hosts[place] for place in places], body, 60.0):
            assert not isinstance(result, Raised), result.error.args[0]
            assert result < 1e-12
