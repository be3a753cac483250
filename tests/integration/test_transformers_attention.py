"""context_attention as attention of transformers: one process's numbers, or refused by name."""

from __future__ import annotations

import importlib.util

import pytest
from support.forked import Raised
from support.worlds import run_processes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
    pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="needs transformers"),
]


def test_models_are_the_same_or_refused() -> None:
    from support import transformers_attention

    for result in run_processes(2, transformers_attention.attended, 60.0):
        assert not isinstance(result, Raised), result.error.args[0]
        apart, (window, wide, padded, capped) = result
        assert apart < 1e-6
        assert "a window of 6 of 16 tokens" in window
        assert wide == "nothing"
        assert "padding (attention_mask)" in padded
        assert "a cap on scores (softcap)" in capped
