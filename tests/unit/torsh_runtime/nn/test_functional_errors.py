"""What the functions say of arguments that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

from torsh_runtime import nn
from torsh_runtime.nn import functional as F  # noqa: N812


def integers(*values: int) -> nn.Tensor:
    return nn.tensor(np.array(values))


def test_linear_and_convolution() -> None:
    with pytest.raises(ValueError, match="in_features"):
        F.linear(nn.randn(2, 3), nn.randn(4, 5))
    with pytest.raises(ValueError, match="four axes"):
        F.conv2d(nn.randn(2, 3), nn.randn(4, 5, 1, 1))
    with pytest.raises(ValueError, match="channels"):
        F.conv2d(nn.randn(1, 3, 4, 4), nn.randn(4, 3, 1, 1), groups=2)
    with pytest.raises(ValueError, match="does not fit into"):
        F.max_pool2d(nn.randn(1, 1, 2, 2), 3)


def test_losses() -> None:
    with pytest.raises(ValueError, match=r"shape is \(3,\) instead of \(2,\)"):
        F.cross_entropy(nn.randn(2, 4), integers(1, 2, 3))
    with pytest.raises(TypeError, match="integers"):
        F.cross_entropy(nn.randn(2, 4), nn.randn(2))
    with pytest.raises(ValueError, match="from 0 to 3"):
        F.cross_entropy(nn.randn(2, 4), integers(0, 4))
    with pytest.raises(ValueError, match="reduction"):
        F.mse_loss(nn.randn(2), nn.randn(2), reduction="average")
    with pytest.raises(ValueError, match="do not fit"):
        F.mse_loss(nn.randn(2), nn.randn(3))


def test_lookups_norms_attention() -> None:
    with pytest.raises(IndexError, match="table has 3 rows"):
        F.embedding(integers(3), nn.randn(3, 2))
    with pytest.raises(TypeError, match="integers"):
        F.embedding(nn.randn(3), nn.randn(3, 2))
    with pytest.raises(ValueError, match="last axes"):
        F.layer_norm(nn.randn(2, 3), (4,))
    with pytest.raises(ValueError, match="do not fit"):
        F.scaled_dot_product_attention(nn.randn(2, 3), nn.randn(2, 4), nn.randn(2, 4))
    q = nn.randn(2, 3)
    with pytest.raises(ValueError, match="exclude"):
        F.scaled_dot_product_attention(q, q, q, nn.randn(2, 2), is_causal=True)
    with pytest.raises(ValueError, match="probability"):
        F.dropout(q, 1.5)
    with pytest.raises(ValueError, match="'tanh'"):
        F.gelu(q, approximate="erf")
    with pytest.raises(ValueError, match="do not make up axis 0"):
        q.split([1, 2])


def test_rows_that_look_at_nothing_are_zeros() -> None:
    q = nn.randn(2, 3).requires_grad_()
    mask = nn.tensor(np.array([[True, True], [False, False]]))
    result = F.scaled_dot_product_attention(q, q, q, mask)
    result.sum().backward()
    assert result.tolist()[1] == [0, 0, 0]
    assert q.grad is not None
    assert np.isfinite(q.grad.numpy()).all()


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_keeps_the_mean(p: float) -> None:
    nn.manual_seed(3)
    x = nn.tensor(np.ones(100_000), requires_grad=True)
    result = F.dropout(x, p)
    result.sum().backward()
    assert result.mean().item() == pytest.approx(0 if p == 1 else 1, abs=0.02)
    assert x.grad is not None
    assert np.array_equal(x.grad.numpy(), result.detach().numpy())
    assert F.dropout(x, p, training=False) is x


def test_attention_drops_weights_in_both_directions() -> None:
    nn.manual_seed(3)
    inputs = [nn.tensor(np.random.default_rng(1).normal(size=(4, 3)), requires_grad=True)] * 3
    state, step = nn.get_rng_state(), 1e-6

    def value(move: float) -> nn.Tensor:
        nn.set_rng_state(state)
        moved = inputs[0] + move
        return F.scaled_dot_product_attention(inputs[0], inputs[0] * moved, moved, None, 0.4).sum()

    value(0.0).backward()
    base = inputs[0].detach().numpy()
    assert inputs[0].grad is not None
    slope = float(inputs[0].grad.numpy().sum())
    inputs = [nn.from_numpy(base + step)]
    upper = value(0.0).item()
    inputs = [nn.from_numpy(base - step)]
    assert slope == pytest.approx((upper - value(0.0).item()) / (2 * step), rel=1e-6)
