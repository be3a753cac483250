"""Sharded data parallelism: every rank has a part of the model and its own batches."""

from torsh_runtime.parallel.fsdp.accounting import MemoryStats
from torsh_runtime.parallel.fsdp.config import (
    BackwardPrefetch,
    CustomAutoWrap,
    FsdpConfig,
    MemoryConfig,
    MixedPrecision,
    ModuleTypeBasedAutoWrap,
    NoAutoWrap,
    ShardingStrategy,
    SizeBasedAutoWrap,
)
from torsh_runtime.parallel.fsdp.wrapper import (
    FullyShardedDataParallel,
    auto_wrap_modules,
    fsdp_wrap,
    register_fsdp_forward_method,
)

__all__ = [
    "BackwardPrefetch",
    "CustomAutoWrap",
    "FsdpConfig",
    "FullyShardedDataParallel",
    "MemoryConfig",
    "MemoryStats",
    "MixedPrecision",
    "ModuleTypeBasedAutoWrap",
    "NoAutoWrap",
    "ShardingStrategy",
    "SizeBasedAutoWrap",
    "auto_wrap_modules",
    "fsdp_wrap",
    "register_fsdp_forward_method",
]
