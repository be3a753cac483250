"""Horovod's settings become ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torsh_runtime.compression import Cast, Int8, OneBit, RandomK, Threshold, TopK
from torsh_runtime.elastic import ElasticAgent
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.horovod import HorovodConfig, HorovodIntegration


def read(folder: Path, content: Any) -> HorovodIntegration:
    (folder / "horovod.json").write_text(json.dumps(content))
    return HorovodIntegration.from_file(folder / "horovod.json")


def test_top_k() -> None:
    config = HorovodIntegration.config_with_topk_compression(0.01)
    ours = HorovodIntegration(config).to_ddp_config()
    assert (ours.gradient_compression, ours.bucket_size_mb) == ("topk:0.01", 64.0)
    compressor = HorovodIntegration(config).to_compression_config()
    assert isinstance(compressor, TopK)


@pytest.mark.parametrize(
    ("kind", "parameters", "expected"),
    [
        ("RandomK", {"k": 0.1}, RandomK),
        ("Bernoulli", {"probability": 0.1}, RandomK),
        ("Threshold", {"threshold": 0.001}, Threshold),
        ("Quantization", {}, Int8),
        ("Quantization", {"bits": 1}, OneBit),
        ("Quantization", {"bits": 16.0}, Cast),
        ("None", {}, type(None)),
    ],
)
def test_compression(tmp_path: Path, kind: str, parameters: Any, expected: type) -> None:
    given = {"compression_type": kind, "compression_params": parameters}
    integration = read(tmp_path, {"gradient_compression": given})
    assert isinstance(integration.to_compression_config(), expected)


def test_accumulation_and_buckets(tmp_path: Path) -> None:
    content = {
        "backward_passes_per_step": 2,
        "gradient_accumulation_steps": 3,
        "optimizer_fusion": {"enabled": True, "fusion_threshold": 2**20, "cycle_time_ms": 1},
        "gradient_compression": None,
    }
    ours = read(tmp_path, content).to_ddp_config()
    assert (ours.gradient_accumulation_steps, ours.bucket_size_mb) == (6, 1.0)
    assert ours.gradient_compression is None
    plain = HorovodIntegration(HorovodConfig())
    assert plain.to_ddp_config().bucket_size_mb == 25.0
    assert plain.to_compression_config() is plain.to_elastic_config() is None


def test_elastic() -> None:
    config = HorovodIntegration.config_with_elastic(2, 8)
    assert isinstance(HorovodIntegration(config).to_elastic_config(), ElasticAgent)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"fusion": 1}, "unknown fusion; there are gradient_compression"),
        ({"optimizer_fusion": {"cycles": 1}}, "optimizer_fusion: unknown cycles"),
        ({"optimizer_fusion": {"enabled": False}}, "not supported"),
        ({"gradient_compression": {"compression_type": "Gaussian"}}, "'Gaussian' is not supported"),
        ({"gradient_compression": {"compression_type": "TopK"}}, "needs compression_params['k']"),
        ({"gradient_compression": {"compression_period": 5}}, "only 1 is supported"),
        (
            {
                "gradient_compression": {
                    "compression_type": "Quantization",
                    "compression_params": {"bits": 4},
                }
            },
            "in 4 bits",
        ),
        ({"timeline": {"filename": "t.json"}}, "torshctl trace"),
        ({"custom_ops": {"a": "b"}}, "custom_ops are not supported: a"),
        ({"elastic": {"min_workers": 8, "max_workers": 2}}, "at most max_workers=2"),
        ({"elastic": {"min_workers": 8}}, "max_workers"),
        ({"elastic": {"min_workers": 1, "max_workers": 2, "discovery_server": "x"}}, "rdzv"),
        ([], "a JSON object is needed"),
        ({"elastic": 3}, "elastic: a JSON object is needed"),
    ],
)
def test_what_is_refused(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, content)
    assert said in str(raised.value)


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        HorovodIntegration.from_file(tmp_path / "none.json")


def test_the_place_has_to_be_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    integration = HorovodIntegration(HorovodIntegration.default_config())
    with pytest.raises(ConfigError, match=r"started this process as \(1, 2, 1, 2\)"):
        integration.initialize(0, 4, 0, 1)
