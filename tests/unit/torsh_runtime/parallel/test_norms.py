"""Power sums are those of numpy's norms."""

from __future__ import annotations

import numpy as np
import pytest

from torsh_runtime import nn
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.norms import norm_of, power_sums, scale


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
def test_norms_of_all_dtypes(dtype: str, norm_type: float) -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal((4, 5)) + 1j * random.standard_normal((4, 5))
    array = (values if "complex" in dtype else values.real).astype(dtype)
    found = power_sums([[nn.Tensor(array)]], norm_type)[0]
    wide = np.abs(array.astype("complex128" if "complex" in dtype else "float64")).reshape(-1)
    assert norm_of([found], norm_type) == pytest.approx(np.linalg.norm(wide, norm_type), rel=1e-12)


def test_no_norm_hides_what_is_no_number() -> None:
    gradients = [nn.Tensor(np.array([1.0, each])) for each in (2.0, np.nan, 3.0)]
    for norm_type in (1.0, 2.0, float("inf")):
        assert np.isnan(norm_of(power_sums([gradients], norm_type), norm_type))


@pytest.mark.parametrize("norm_type", [0, 0.0, -1.0, float("-inf"), float("nan")])
def test_what_is_no_exponent_of_a_norm_is_refused(norm_type: float) -> None:
    with pytest.raises(ConfigError, match="norm_type must be > 0 or inf"):
        power_sums([[nn.Tensor(np.ones(3))]], norm_type)


@pytest.mark.torch
@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_sparse_gradients_have_the_norm_of_dense_ones(norm_type: float) -> None:
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding(9, 4, sparse=True, dtype=torch.float64)
    table(torch.tensor([2, 7, 2])).square().sum().backward()
    gradient = table.weight.grad
    assert gradient.is_sparse
    dense = gradient.to_dense().clone()
    found = norm_of(power_sums([[gradient]], norm_type), norm_type)
    assert found == pytest.approx(np.linalg.norm(dense.numpy().reshape(-1), norm_type), rel=1e-12)
    scale([gradient], 0.5)
    torch.testing.assert_close(gradient.to_dense(), dense * 0.5, rtol=0, atol=0)
