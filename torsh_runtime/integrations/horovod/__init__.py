"""Holds Horovod's settings. The subpackage `torch` has its interface to torch."""

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
