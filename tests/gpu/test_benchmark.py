"""The cases of benchmarks/gpu.py on a real GPU, with small sizes."""

from __future__ import annotations

import pytest
from support.real_gpus import needs_gpu

from benchmarks.gpu import CASES, measured

pytestmark = [pytest.mark.gpu, needs_gpu]


@pytest.mark.parametrize("name", CASES)
def test_a_case_measures_what_its_bars_are_for(name: str) -> None:
    figures = measured(name, CASES[name].seconds, ["--quick"])
    for bar in CASES[name].bars:
        assert {bar.what, bar.beside or bar.what} <= figures.keys()
