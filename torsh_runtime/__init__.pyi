"""The public names, and where each is: the one table, for type checkers and for __init__.py."""

from . import (
    checkpoint as checkpoint,
    compression as compression,
    elastic as elastic,
    monitoring as monitoring,
    nn as nn,
    optim as optim,
    rpc as rpc,
)
from torsh_runtime.backends.base import (
    BackendType as BackendType,
    CommunicationStrategy as CommunicationStrategy,
    Envelope as Envelope,
    PremulSum as PremulSum,
    ReduceOp as ReduceOp,
)
from torsh_runtime.backends.future import Future as Future
from torsh_runtime.backends.work import Work as Work
from torsh_runtime.bootstrap import (
    destroy_process_group as destroy_process_group,
    get_store as get_store,
    init_process_group as init_process_group,
    serve_store as serve_store,
    shrink_group as shrink_group,
)
from torsh_runtime.checkpoint.pretrained import (
    from_pretrained as from_pretrained,
    save_pretrained as save_pretrained,
)
from torsh_runtime.checkpoint.state_dicts import (
    StateDictOptions as StateDictOptions,
    get_model_state_dict as get_model_state_dict,
    get_optimizer_state_dict as get_optimizer_state_dict,
    set_model_state_dict as set_model_state_dict,
    set_optimizer_state_dict as set_optimizer_state_dict,
    whole_state_dict as whole_state_dict,
)
from torsh_runtime.comm.barriers import (
    barrier as barrier,
    monitored_barrier as monitored_barrier,
)
from torsh_runtime.comm.choosing import (
    get_default_backend_for_device as get_default_backend_for_device,
    is_backend_available as is_backend_available,
    supports_complex as supports_complex,
)
from torsh_runtime.comm.coalescing import (
    all_gather_coalesced as all_gather_coalesced,
    all_reduce_coalesced as all_reduce_coalesced,
    coalesce as coalesce,
)
from torsh_runtime.comm.data_movement import (
    all_gather as all_gather,
    all_gather_into_tensor as all_gather_into_tensor,
    all_gather_single as all_gather_single,
    all_to_all as all_to_all,
    all_to_all_single as all_to_all_single,
)
from torsh_runtime.comm.exchanging import sendrecv as sendrecv
from torsh_runtime.comm.group import ProcessGroup as ProcessGroup
from torsh_runtime.comm.groups import (
    get_backend as get_backend,
    get_backend_config as get_backend_config,
    get_global_rank as get_global_rank,
    get_group_rank as get_group_rank,
    get_pg_count as get_pg_count,
    get_process_group_ranks as get_process_group_ranks,
    get_rank as get_rank,
    get_world_size as get_world_size,
    is_gloo_available as is_gloo_available,
    is_initialized as is_initialized,
    is_mpi_available as is_mpi_available,
    is_nccl_available as is_nccl_available,
    is_ucc_available as is_ucc_available,
    is_xccl_available as is_xccl_available,
    new_group as new_group,
    split as split,
)
from torsh_runtime.comm.launched import (
    get_node_local_rank as get_node_local_rank,
    is_torchelastic_launched as is_torchelastic_launched,
)
from torsh_runtime.comm.messages import (
    P2POp as P2POp,
    batch_isend_irecv as batch_isend_irecv,
    iprobe as iprobe,
    irecv as irecv,
    isend as isend,
    probe as probe,
    recv as recv,
    send as send,
)
from torsh_runtime.comm.non_member import (
    GroupMember as GroupMember,
    group as group,
)
from torsh_runtime.comm.objects import (
    all_gather_object as all_gather_object,
    broadcast_object_list as broadcast_object_list,
    gather_object as gather_object,
    recv_object_list as recv_object_list,
    scatter_object_list as scatter_object_list,
    send_object_list as send_object_list,
)
from torsh_runtime.comm.out_of_place import (
    all_reduce_into as all_reduce_into,
    exscan as exscan,
    exscan_into as exscan_into,
    reduce_into as reduce_into,
    scan as scan,
    scan_into as scan_into,
)
from torsh_runtime.comm.persistent import (
    Persistent as Persistent,
    persistent as persistent,
    start_all as start_all,
)
from torsh_runtime.comm.reductions import (
    all_reduce as all_reduce,
    premul_sum as premul_sum,
    reduce as reduce,
    reduce_scatter as reduce_scatter,
    reduce_scatter_single as reduce_scatter_single,
    reduce_scatter_tensor as reduce_scatter_tensor,
)
from torsh_runtime.comm.rooted import (
    broadcast as broadcast,
    gather as gather,
    scatter as scatter,
)
from torsh_runtime.comm.shared import empty_shared as empty_shared
from torsh_runtime.comm.splitting import parts as parts
from torsh_runtime.comm.subgroups import (
    new_subgroups as new_subgroups,
    new_subgroups_by_enumeration as new_subgroups_by_enumeration,
    split_group as split_group,
)
from torsh_runtime.comm.waiting import (
    waitall as waitall,
    waitany as waitany,
)
from torsh_runtime.error_file import record as record
from torsh_runtime.errors import (
    BackendUnavailable as BackendUnavailable,
    CheckpointError as CheckpointError,
    CommAborted as CommAborted,
    CommError as CommError,
    CommMismatch as CommMismatch,
    CommTimeout as CommTimeout,
    ConfigError as ConfigError,
    GradientError as GradientError,
    PeerLost as PeerLost,
    PipelineError as PipelineError,
    StateCorrupted as StateCorrupted,
    StoreError as StoreError,
    StoreTimeout as StoreTimeout,
    TorshError as TorshError,
)
from torsh_runtime.integrations.torch.batch_norm import SyncBatchNorm as SyncBatchNorm
from torsh_runtime.layout import (
    Shard as Shard,
    TensorLayout as TensorLayout,
)
from torsh_runtime.mesh.creation import init_device_mesh as init_device_mesh
from torsh_runtime.mesh.mesh import DeviceMesh as DeviceMesh
from torsh_runtime.mesh.three_dimensional_ranks import (
    ProcessGroupIds as ProcessGroupIds,
    RankMapping as RankMapping,
    ThreeDParallelismConfig as ThreeDParallelismConfig,
)
from torsh_runtime.mesh.three_dimensions import (
    CommunicationStats as CommunicationStats,
    ProcessGroupManager as ProcessGroupManager,
)
from torsh_runtime.parallel.automatic import plan_of as plan_of
from torsh_runtime.parallel.clipping import clip_grad_norm_ as clip_grad_norm_
from torsh_runtime.parallel.context import (
    context_attention as context_attention,
    context_batch as context_batch,
    context_gather as context_gather,
    context_loss as context_loss,
    context_model as context_model,
    context_positions as context_positions,
    context_shard as context_shard,
    register_context_attention as register_context_attention,
)
from torsh_runtime.parallel.ddp.config import BucketConfig as BucketConfig
from torsh_runtime.parallel.ddp.wrapper import DistributedDataParallel as DistributedDataParallel
from torsh_runtime.parallel.experts import MixtureOfExperts as MixtureOfExperts
from torsh_runtime.parallel.fsdp import (
    BackwardPrefetch as BackwardPrefetch,
    CPUOffloadPolicy as CPUOffloadPolicy,
    CustomAutoWrap as CustomAutoWrap,
    FSDPModule as FSDPModule,
    FsdpConfig as FsdpConfig,
    FullyShardedDataParallel as FullyShardedDataParallel,
    MemoryConfig as MemoryConfig,
    MemoryStats as MemoryStats,
    MixedPrecision as MixedPrecision,
    MixedPrecisionPolicy as MixedPrecisionPolicy,
    ModuleTypeBasedAutoWrap as ModuleTypeBasedAutoWrap,
    NoAutoWrap as NoAutoWrap,
    OffloadPolicy as OffloadPolicy,
    ShardingStrategy as ShardingStrategy,
    SizeBasedAutoWrap as SizeBasedAutoWrap,
    UnshardHandle as UnshardHandle,
    auto_wrap_modules as auto_wrap_modules,
    fsdp_wrap as fsdp_wrap,
    fully_shard as fully_shard,
    register_fsdp_forward_method as register_fsdp_forward_method,
    share_comm_ctx as share_comm_ctx,
)
from torsh_runtime.parallel.initial import init_parameters as init_parameters
from torsh_runtime.parallel.layouts import layouts_of as layouts_of
from torsh_runtime.parallel.optimizer import DistributedOptimizer as DistributedOptimizer
from torsh_runtime.parallel.pipeline import PipelineParallel as PipelineParallel
from torsh_runtime.parallel.sampler import DistributedSampler as DistributedSampler
from torsh_runtime.parallel.scaler import ShardedGradScaler as ShardedGradScaler
from torsh_runtime.parallel.streams import (
    draw_by_name as draw_by_name,
    dropout_region as dropout_region,
    random_stream as random_stream,
)
from torsh_runtime.parallel.tensor import (
    Attention as Attention,
    Block as Block,
    Column as Column,
    ColumnParallelLinear as ColumnParallelLinear,
    Cut as Cut,
    Experts as Experts,
    Heads as Heads,
    ParallelAttention as ParallelAttention,
    Part as Part,
    Row as Row,
    RowParallelLinear as RowParallelLinear,
    Scatter as Scatter,
    Shared as Shared,
    Summed as Summed,
    VocabParallelEmbedding as VocabParallelEmbedding,
    Vocabulary as Vocabulary,
    Whole as Whole,
    parallelize as parallelize,
    vocab_parallel_cross_entropy as vocab_parallel_cross_entropy,
)
from torsh_runtime.parallel.trees import average_gradients as average_gradients
from torsh_runtime.parallel.verification import verify as verify
from torsh_runtime.status import report_step as report_step
from torsh_runtime.store.user import (
    PrefixStore as PrefixStore,
    Store as Store,
)
from torsh_runtime.store.watch import StoreWatch as StoreWatch

__all__: list[str]
__version__: str

def __dir__() -> list[str]: ...
