"""Power sums are those of numpy's norms."""

from __future__ import annotations

import numpy as np
import pytest

from torsh_runtime import nn
from torsh_runtime.parallel.norms import norm_of, power_sums


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
