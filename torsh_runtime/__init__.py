"""What a worker imports: process groups and collectives, and models to train with them.

The names load lazily: importing this package loads neither numpy nor any backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torsh_runtime import (
        checkpoint,
        compression,
        elastic,
        nn,
        optim,
    )
    from torsh_runtime.backends.base import (
        BackendType,
        CommunicationStrategy,
        Envelope,
        PremulSum,
        ReduceOp,
    )
    from torsh_runtime.backends.future import (
        Future,
    )
    from torsh_runtime.backends.work import (
        Work,
    )
    from torsh_runtime.bootstrap import (
        destroy_process_group,
        get_store,
        init_process_group,
        serve_store,
        shrink_group,
    )
    from torsh_runtime.comm.apart import (
        all_reduce_into,
        exscan,
        exscan_into,
        reduce_into,
        scan,
        scan_into,
    )
    from torsh_runtime.comm.choosing import (
        get_default_backend_for_device,
        is_backend_available,
        supports_complex,
    )
    from torsh_runtime.comm.coalescing import (
        all_gather_coalesced,
        all_reduce_coalesced,
        coalesce,
    )
    from torsh_runtime.comm.default import (
        GroupMember,
        group,
    )
    from torsh_runtime.comm.exchanging import (
        sendrecv,
    )
    from torsh_runtime.comm.functional import (
        all_gather,
        all_gather_into_tensor,
        all_gather_single,
        all_reduce,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        gather,
        monitored_barrier,
        premul_sum,
        reduce,
        reduce_scatter,
        reduce_scatter_single,
        reduce_scatter_tensor,
        scatter,
    )
    from torsh_runtime.comm.group import (
        ProcessGroup,
    )
    from torsh_runtime.comm.groups import (
        get_backend,
        get_backend_config,
        get_global_rank,
        get_group_rank,
        get_pg_count,
        get_process_group_ranks,
        get_rank,
        get_world_size,
        is_gloo_available,
        is_initialized,
        is_mpi_available,
        is_nccl_available,
        is_ucc_available,
        is_xccl_available,
        new_group,
        split,
    )
    from torsh_runtime.comm.launched import (
        get_node_local_rank,
        is_torchelastic_launched,
    )
    from torsh_runtime.comm.messages import (
        P2POp,
        batch_isend_irecv,
        iprobe,
        irecv,
        isend,
        probe,
        recv,
        send,
    )
    from torsh_runtime.comm.objects import (
        all_gather_object,
        broadcast_object_list,
        gather_object,
        recv_object_list,
        scatter_object_list,
        send_object_list,
    )
    from torsh_runtime.comm.persistent import (
        Persistent,
        persistent,
        start_all,
    )
    from torsh_runtime.comm.shared import (
        empty_shared,
    )
    from torsh_runtime.comm.splitting import (
        parts,
    )
    from torsh_runtime.comm.subgroups import (
        new_subgroups,
        new_subgroups_by_enumeration,
        split_group,
    )
    from torsh_runtime.comm.waiting import (
        waitall,
        waitany,
    )
    from torsh_runtime.error_file import (
        record,
    )
    from torsh_runtime.errors import (
        BackendUnavailable,
        CheckpointError,
        CommAborted,
        CommError,
        CommMismatch,
        CommTimeout,
        ConfigError,
        GradientError,
        PeerLost,
        PipelineError,
        StoreError,
        StoreTimeout,
        TorshError,
    )
    from torsh_runtime.integrations.torch.batch_norm import (
        SyncBatchNorm,
    )
    from torsh_runtime.layout import (
        Shard,
        TensorLayout,
    )
    from torsh_runtime.mesh.mesh import (
        DeviceMesh,
        init_device_mesh,
    )
    from torsh_runtime.mesh.three_dimensions import (
        CommunicationStats,
        ProcessGroupIds,
        ProcessGroupManager,
        RankMapping,
        ThreeDParallelismConfig,
    )
    from torsh_runtime.parallel.clipping import (
        clip_grad_norm_,
    )
    from torsh_runtime.parallel.context import (
        context_attention,
        context_gather,
        context_positions,
        context_shard,
        register_context_attention,
    )
    from torsh_runtime.parallel.ddp.config import (
        BucketConfig,
    )
    from torsh_runtime.parallel.ddp.wrapper import (
        DistributedDataParallel,
    )
    from torsh_runtime.parallel.experts import (
        MixtureOfExperts,
    )
    from torsh_runtime.parallel.fsdp import (
        BackwardPrefetch,
        CustomAutoWrap,
        FsdpConfig,
        FullyShardedDataParallel,
        MemoryConfig,
        MemoryStats,
        MixedPrecision,
        ModuleTypeBasedAutoWrap,
        NoAutoWrap,
        ShardingStrategy,
        SizeBasedAutoWrap,
        auto_wrap_modules,
        fsdp_wrap,
        register_fsdp_forward_method,
    )
    from torsh_runtime.parallel.initial import (
        init_parameters,
    )
    from torsh_runtime.parallel.layouts import (
        layouts_of,
    )
    from torsh_runtime.parallel.optimizer import (
        DistributedOptimizer,
    )
    from torsh_runtime.parallel.pipeline import (
        PipelineParallel,
    )
    from torsh_runtime.parallel.sampler import (
        DistributedSampler,
    )
    from torsh_runtime.parallel.scaler import ShardedGradScaler
    from torsh_runtime.parallel.streams import (
        draw_by_name,
        dropout_region,
        random_stream,
    )
    from torsh_runtime.parallel.tensor import (
        Attention,
        Block,
        Column,
        ColumnParallelLinear,
        ParallelAttention,
        Part,
        Row,
        RowParallelLinear,
        VocabParallelEmbedding,
        Vocabulary,
        parallelize,
        vocab_parallel_cross_entropy,
    )
    from torsh_runtime.parallel.trees import (
        average_gradients,
    )
    from torsh_runtime.parallel.verification import (
        verify,
    )
    from torsh_runtime.status import (
        report_step,
    )
    from torsh_runtime.store.user import (
        PrefixStore,
        Store,
        StoreWatch,
    )

_HOMES = {
    "torsh_runtime.backends.base": (
        "BackendType",
        "CommunicationStrategy",
        "Envelope",
        "PremulSum",
        "ReduceOp",
    ),
    "torsh_runtime.backends.future": ("Future",),
    "torsh_runtime.backends.work": ("Work",),
    "torsh_runtime.bootstrap": (
        "destroy_process_group",
        "get_store",
        "init_process_group",
        "serve_store",
        "shrink_group",
    ),
    "torsh_runtime.comm.apart": (
        "all_reduce_into",
        "exscan",
        "exscan_into",
        "reduce_into",
        "scan",
        "scan_into",
    ),
    "torsh_runtime.comm.choosing": (
        "get_default_backend_for_device",
        "is_backend_available",
        "supports_complex",
    ),
    "torsh_runtime.comm.coalescing": (
        "all_gather_coalesced",
        "all_reduce_coalesced",
        "coalesce",
    ),
    "torsh_runtime.comm.default": (
        "GroupMember",
        "group",
    ),
    "torsh_runtime.comm.exchanging": ("sendrecv",),
    "torsh_runtime.comm.functional": (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "gather",
        "monitored_barrier",
        "premul_sum",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "scatter",
    ),
    "torsh_runtime.comm.group": ("ProcessGroup",),
    "torsh_runtime.comm.groups": (
        "get_backend",
        "get_backend_config",
        "get_global_rank",
        "get_group_rank",
        "get_pg_count",
        "get_process_group_ranks",
        "get_rank",
        "get_world_size",
        "is_gloo_available",
        "is_initialized",
        "is_mpi_available",
        "is_nccl_available",
        "is_ucc_available",
        "is_xccl_available",
        "new_group",
        "split",
    ),
    "torsh_runtime.comm.launched": (
        "get_node_local_rank",
        "is_torchelastic_launched",
    ),
    "torsh_runtime.comm.messages": (
        "P2POp",
        "batch_isend_irecv",
        "iprobe",
        "irecv",
        "isend",
        "probe",
        "recv",
        "send",
    ),
    "torsh_runtime.comm.objects": (
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
        "recv_object_list",
        "scatter_object_list",
        "send_object_list",
    ),
    "torsh_runtime.comm.persistent": (
        "Persistent",
        "persistent",
        "start_all",
    ),
    "torsh_runtime.comm.shared": ("empty_shared",),
    "torsh_runtime.comm.splitting": ("parts",),
    "torsh_runtime.comm.subgroups": (
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "split_group",
    ),
    "torsh_runtime.comm.waiting": (
        "waitall",
        "waitany",
    ),
    "torsh_runtime.error_file": ("record",),
    "torsh_runtime.errors": (
        "BackendUnavailable",
        "CheckpointError",
        "CommAborted",
        "CommError",
        "CommMismatch",
        "CommTimeout",
        "ConfigError",
        "GradientError",
        "PeerLost",
        "PipelineError",
        "StoreError",
        "StoreTimeout",
        "TorshError",
    ),
    "torsh_runtime.integrations.torch.batch_norm": ("SyncBatchNorm",),
    "torsh_runtime.layout": (
        "Shard",
        "TensorLayout",
    ),
    "torsh_runtime.mesh.mesh": (
        "DeviceMesh",
        "init_device_mesh",
    ),
    "torsh_runtime.mesh.three_dimensions": (
        "CommunicationStats",
        "ProcessGroupIds",
        "ProcessGroupManager",
        "RankMapping",
        "ThreeDParallelismConfig",
    ),
    "torsh_runtime.parallel.clipping": ("clip_grad_norm_",),
    "torsh_runtime.parallel.context": (
        "context_attention",
        "context_gather",
        "context_positions",
        "context_shard",
        "register_context_attention",
    ),
    "torsh_runtime.parallel.ddp.config": ("BucketConfig",),
    "torsh_runtime.parallel.ddp.wrapper": ("DistributedDataParallel",),
    "torsh_runtime.parallel.experts": ("MixtureOfExperts",),
    "torsh_runtime.parallel.fsdp": (
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
    ),
    "torsh_runtime.parallel.initial": ("init_parameters",),
    "torsh_runtime.parallel.layouts": ("layouts_of",),
    "torsh_runtime.parallel.optimizer": ("DistributedOptimizer",),
    "torsh_runtime.parallel.pipeline": ("PipelineParallel",),
    "torsh_runtime.parallel.sampler": ("DistributedSampler",),
    "torsh_runtime.parallel.scaler": ("ShardedGradScaler",),
    "torsh_runtime.parallel.streams": (
        "draw_by_name",
        "dropout_region",
        "random_stream",
    ),
    "torsh_runtime.parallel.tensor": (
        "Attention",
        "Block",
        "Column",
        "ColumnParallelLinear",
        "ParallelAttention",
        "Part",
        "Row",
        "RowParallelLinear",
        "VocabParallelEmbedding",
        "Vocabulary",
        "parallelize",
        "vocab_parallel_cross_entropy",
    ),
    "torsh_runtime.parallel.trees": ("average_gradients",),
    "torsh_runtime.parallel.verification": ("verify",),
    "torsh_runtime.status": ("report_step",),
    "torsh_runtime.store.user": (
        "PrefixStore",
        "Store",
        "StoreWatch",
    ),
}
_SUBPACKAGES = ("checkpoint", "compression", "elastic", "nn", "optim")
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, *_SUBPACKAGES]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f"torsh_runtime.{name}")
    try:
        home = _HOME_OF[name]
    except KeyError:
        raise AttributeError(f"module 'torsh_runtime' has no attribute {name!r}") from None
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
