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
from torsh_runtime.parallel.fsdp.fsdp_module import (
    FSDPModule,
    UnshardHandle,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from torsh_runtime.parallel.fsdp.fully_shard import fully_shard
from torsh_runtime.parallel.fsdp.policies import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
)
from torsh_runtime.parallel.fsdp.wrapper import (
    FullyShardedDataParallel,
    auto_wrap_modules,
    fsdp_wrap,
)

__all__ = [
    "BackwardPrefetch",
    "CPUOffloadPolicy",
    "CustomAutoWrap",
    "FSDPModule",
    "FsdpConfig",
    "FullyShardedDataParallel",
    "MemoryConfig",
    "MemoryStats",
    "MixedPrecision",
    "MixedPrecisionPolicy",
    "ModuleTypeBasedAutoWrap",
    "NoAutoWrap",
    "OffloadPolicy",
    "ShardingStrategy",
    "SizeBasedAutoWrap",
    "UnshardHandle",
    "auto_wrap_modules",
    "fsdp_wrap",
    "fully_shard",
    "register_fsdp_forward_method",
    "share_comm_ctx",
]
