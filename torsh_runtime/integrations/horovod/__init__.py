"""Horovod: `torch` has its interface to torch; its settings are here."""

from torsh_runtime.integrations.horovod.configuration import (
    HorovodCompressionConfig,
    HorovodConfig,
    HorovodElasticConfig,
    HorovodIntegration,
    HorovodOptimizerFusionConfig,
)

__all__ = [
    "HorovodCompressionConfig",
    "HorovodConfig",
    "HorovodElasticConfig",
    "HorovodIntegration",
    "HorovodOptimizerFusionConfig",
]
