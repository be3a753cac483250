"""Translates Horovod's settings, from a file or a program, into torsh_runtime's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

from torsh_runtime.bootstrap import init_process_group, worker_env
from torsh_runtime.comm.default import has_default_group
from torsh_runtime.compression import Compressor, from_name
from torsh_runtime.elastic.agent import ElasticAgent
from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.ddp.config import BucketConfig

C = TypeVar("C")

_MEBIBYTE = 2**20
_COMPRESSORS = {
    "TopK": ("topk", "k"),
    "RandomK": ("randomk", "k"),
    "Bernoulli": ("randomk", "probability"),
    "Threshold": ("threshold", "threshold"),
}
_QUANTISED = {1: "onebit", 8: "int8", 16: "fp16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodCompressionConfig:
    """Configures how gradients are compressed."""

    compression_type: str = "None"
    """"None", "TopK", "RandomK", "Bernoulli", "Threshold" or "Quantization"."""
    compression_params: Mapping[str, float] = field(default_factory=dict)
    """Parameters by name: "k" of TopK and RandomK and "probability" of Bernoulli are the share that
    is sent; "threshold" of Threshold; "bits" of Quantization: 1, 8 or 16.
    """
    memory_optimization: bool | None = None
    """Has no effect."""
    compression_period: int = 1
    """Must be 1: the gradients of every step are compressed."""

    def name(self) -> str | None:
        """Return the compressor's name for torsh_runtime.compression.from_name(), or None.

        Raises ConfigError for settings that are not supported.
        """
        if self.compression_period != 1:
            raise ConfigError(
                f"compression_period={self.compression_period}: only 1 is supported, which "
                f"compresses the gradients of every step"
            )
        kind, given = self.compression_type, dict(self.compression_params)
        if kind == "None":
            return None
        if kind == "Quantization":
            bits = given.get("bits", 8)
            if bits not in _QUANTISED:
                raise ConfigError(f"Quantization in {bits:g} bits: 1, 8 and 16 are supported")
            return _QUANTISED[int(bits)]
        if kind not in _COMPRESSORS:
            raise ConfigError(
                f"compression_type {kind!r} is not supported: there are None, Quantization, "
                f"{', '.join(_COMPRESSORS)}"
            )
        ours, parameter = _COMPRESSORS[kind]
        if parameter not in given:
            raise ConfigError(f"compression_type {kind} needs compression_params[{parameter!r}]")
        return f"{ours}:{given[parameter]!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodElasticConfig:
    """Limits the number of workers of an elastic job."""

    min_workers: int
    max_workers: int
    initial_workers: int | None = None
    """Has no effect: a job starts with the workers that exist, at least min_workers."""
    discovery_server: str | None = None
    """Must be None: nodes rendezvous at --rdzv-endpoint."""
    health_check_interval: float | None = None
    """Has no effect: the loss of a worker or a node is noticed at once."""
    state_broadcast_timeout: float | None = None
    """Has no effect: the process group's timeout applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodOptimizerFusionConfig:
    """Configures how gradients are combined into buckets."""

    enabled: bool = True
    """False is not supported: small gradients always share buckets."""
    fusion_threshold: int | None = 64 * _MEBIBYTE
    """Largest size of a bucket in bytes; None is torsh_runtime's default."""
    cycle_time_ms: float | None = None
    """Has no effect: a bucket is averaged as soon as it is complete."""
    fusion_buffer_size: int | None = None
    """Has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HorovodConfig:
    """Holds all settings. Raises ConfigError for those that are invalid or not supported."""

    gradient_compression: HorovodCompressionConfig | None = None
    timeline: Any = None
    """Must be None: `torshctl trace` writes timelines."""
    elastic: HorovodElasticConfig | None = None
    optimizer_fusion: HorovodOptimizerFusionConfig | None = None
    backward_passes_per_step: int | None = None
    """Number of backward passes that accumulate gradients before they are averaged."""
    gradient_accumulation_steps: int | None = None
    """Like backward_passes_per_step; if both are given, they multiply."""
    custom_ops: Mapping[str, str] | None = None
    """Must be empty."""

    def __post_init__(self) -> None:
        if self.timeline is not None:
            raise ConfigError("timeline is not supported: use `torshctl trace`")
        if self.custom_ops:
            raise ConfigError(f"custom_ops are not supported: {', '.join(self.custom_ops)}")
        if self.gradient_compression is not None:
            self.gradient_compression.name()
        if self.optimizer_fusion is not None and not self.optimizer_fusion.enabled:
            raise ConfigError("optimizer_fusion.enabled=False is not supported: leave it out")
        elastic = self.elastic
        if elastic is not None and elastic.discovery_server is not None:
            raise ConfigError(
                "elastic.discovery_server is not supported: give ElasticAgent rdzv_endpoint"
            )
        if elastic is not None and not 0 < elastic.min_workers <= elastic.max_workers:
            raise ConfigError(
                f"elastic: min_workers={elastic.min_workers} has to be at least 1, and at most "
                f"max_workers={elastic.max_workers}"
            )


class HorovodIntegration:
    """Translates Horovod's settings for programs that use torsh_runtime's own classes."""

    def __init__(self, config: HorovodConfig) -> None:
        self.config = config

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read the settings from a JSON file. Raises ConfigError for unknown keys."""
        try:
            content = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as JSON: {error}") from None
        parts = {
            "gradient_compression": HorovodCompressionConfig,
            "elastic": HorovodElasticConfig,
            "optimizer_fusion": HorovodOptimizerFusionConfig,
        }
        for name, kind in parts.items():
            if isinstance(content, dict) and content.get(name) is not None:
                content[name] = _made(kind, content[name], name)
        return cls(_made(HorovodConfig, content, str(path)))

    @staticmethod
    def default_config() -> HorovodConfig:
        """Return settings with buckets of 64 MiB."""
        return HorovodConfig(optimizer_fusion=HorovodOptimizerFusionConfig())

    @staticmethod
    def config_with_topk_compression(k: float) -> HorovodConfig:
        """Return settings that send only the largest gradients, a share `k` of them."""
        return HorovodConfig(
            gradient_compression=HorovodCompressionConfig(
                compression_type="TopK", compression_params={"k": k}
            ),
            optimizer_fusion=HorovodOptimizerFusionConfig(),
        )

    @staticmethod
    def config_with_elastic(min_workers: int, max_workers: int) -> HorovodConfig:
        """Return settings for a job of `min_workers` to `max_workers` workers."""
        return HorovodConfig(
            elastic=HorovodElasticConfig(min_workers=min_workers, max_workers=max_workers),
            optimizer_fusion=HorovodOptimizerFusionConfig(),
        )

    def initialize(self, rank: int, size: int, local_rank: int, local_size: int) -> None:
        """Create the default process group if there is none.

        Raises ConfigError if the launcher gave this process other ranks or sizes.
        """
        env = worker_env("env://", -1, -1)
        own = (env.rank, env.world_size, env.local_rank, env.local_world_size)
        if own != (rank, size, local_rank, local_size):
            raise ConfigError(
                f"initialize{(rank, size, local_rank, local_size)}: the launcher has started this "
                f"process as {own} (rank, size, local rank and local size)"
            )
        if not has_default_group():
            init_process_group()

    def to_ddp_config(self) -> BucketConfig:
        """Return the configuration for DistributedDataParallel."""
        config, fusion = self.config, self.config.optimizer_fusion
        sizes: dict[str, Any] = {}
        if fusion is not None and fusion.fusion_threshold is not None:
            sizes["bucket_size_mb"] = fusion.fusion_threshold / _MEBIBYTE
        compression = config.gradient_compression
        return BucketConfig(
            gradient_accumulation_steps=(config.backward_passes_per_step or 1)
            * (config.gradient_accumulation_steps or 1),
            gradient_compression=None if compression is None else compression.name(),
            **sizes,
        )

    def to_compression_config(self) -> Compressor | None:
        """Return the compressor, or None without compression."""
        name = self.to_ddp_config().gradient_compression
        return from_name(name) if isinstance(name, str) else None

    def to_elastic_config(self) -> ElasticAgent | None:
        """Return an agent that runs a function in that many workers, and again when one fails.

        Returns None if the settings have no elastic part.
        """
        elastic = self.config.elastic
        if elastic is None:
            return None
        return ElasticAgent(min_workers=elastic.min_workers, max_workers=elastic.max_workers)


def _made(kind: type[C], content: Any, where: str) -> C:
    known = [each.name for each in fields(kind)]  # type: ignore[arg-type]
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: a JSON object is needed, with {', '.join(known)}")
    unknown = [name for name in content if name not in known]
    if unknown:
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(known)}")
    try:
        return kind(**content)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from None
