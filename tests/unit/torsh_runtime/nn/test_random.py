"""The generator's state."""

from __future__ import annotations

import json

import numpy as np

from torsh_runtime import nn


def test_a_seed_gives_the_same_model() -> None:
    models = []
    for _ in range(2):
        nn.manual_seed(7)
        models.append(nn.Linear(3, 3).weight.data)
    assert np.array_equal(*models)


def test_a_state_is_gone_back_to_even_by_way_of_json() -> None:
    nn.manual_seed(7)
    nn.randn(3)
    state = json.loads(json.dumps(nn.get_rng_state()))
    first = nn.randn(5).numpy()
    nn.set_rng_state(state)
    assert np.array_equal(first, nn.randn(5).numpy())
