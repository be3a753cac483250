"""Compressors by name, and options that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from torsh_runtime.compression import (
    Cast,
    Compressor,
    Int8,
    MomentumCorrection,
    OneBit,
    PowerSGD,
    RandomK,
    Threshold,
    TopK,
    from_name,
)
from torsh_runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("topk:0.02", TopK(0.02)),
        ("topk", TopK()),
        ("randomk:0.5", RandomK(0.5)),
        ("threshold:1e-3", Threshold(1e-3)),
        ("powersgd:2", PowerSGD(2)),
        ("onebit", OneBit()),
        ("int8", Int8()),
        ("fp16", Cast("float16")),
        ("bf16", Cast("bfloat16")),
    ],
)
def test_names(name: str, wanted: Compressor) -> None:
    assert repr(from_name(name)) == repr(wanted)


@pytest.mark.parametrize("name", ["", "gzip", "int8:4", "topk:", "topk:many", "powersgd:1.5"])
def test_other_names(name: str) -> None:
    with pytest.raises(ConfigError, match=r"onebit, int8, fp16, bf16, topk:RATIO, .*powersgd:RANK"):
        from_name(name)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopK(0),
        lambda: TopK(1.5),
        lambda: TopK(k=0),
        lambda: TopK(values="int8"),
        lambda: RandomK(float("nan")),
        lambda: Threshold(0.0),
        lambda: PowerSGD(0),
        lambda: OneBit(block=8),
        lambda: Int8(levels=200),
        lambda: Cast("float32"),
        lambda: MomentumCorrection(Int8()),
        lambda: MomentumCorrection(TopK(), momentum=1.0),
        lambda: MomentumCorrection(PowerSGD(), warmup_steps=5),
        lambda: MomentumCorrection(TopK(k=4), warmup_steps=5),
    ],
)
def test_wrong_options(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
