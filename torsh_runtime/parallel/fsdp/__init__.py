"""Sharded data parallelism: every rank has a part of the model and its own batches."""

from torsh_runtime.parallel.fsdp.config import (
    BackwardPrefetch,
    FsdpConfig,
    MemoryConfig,
    MixedPrecision,
    ShardingStrategy,
)
from torsh_runtime.parallel.fsdp.methods import register_fsdp_forward_method
from torsh_runtime.parallel.fsdp.stats import MemoryStats
from torsh_runtime.parallel.fsdp.wrapper import FullyShardedDataParallel
from torsh_runtime.parallel.fsdp.wrapping import (
    CustomAutoWrap,
    ModuleTypeBasedAutoWrap,
    NoAutoWrap,
    SizeBasedAutoWrap,
    auto_wrap_modules,
    fsdp_wrap,
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
