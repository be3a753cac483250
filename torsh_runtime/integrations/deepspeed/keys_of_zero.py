"""Keys of ZeRO and of offloading."""

from __future__ import annotations

from torsh_runtime.integrations.deepspeed.keys import NO_EFFECT, REFUSED, USED, Keys

_SENDING = "FSDP averages each gradient as soon as it is there, and sends no buckets."
_UNITS = "One unit is gathered ahead of the one that computes, and let go of after it."
_DISKS = "Nothing is kept on disks: see offload_param and offload_optimizer."
_DEVICE = (
    'cpu: FsdpConfig.cpu_offload, for a model on the CPU, as torshrun\'s backend "native" has it; '
    "with a model on a GPU the wrapper refuses it. nvme is refused."
)
_QUANTISED = "ZeRO++ is not there: DDP has compressors (docs/compression.md)."

ZERO = (
    Keys("", "zero_optimization:dict|bool", USED, "See the keys in it; false is stage 0."),
    Keys(
        "zero_optimization",
        "stage:int",
        USED,
        'Stage 0: DDP, or FSDP\'s "none" where fp16, bf16 or activation checkpointing asks for it. '
        '1 and 2: FSDP\'s "grad-and-optimizer"; with 1 gradients are added up whole until the '
        'optimizer steps. 3: FSDP\'s "full".',
    ),
    Keys(
        "zero_optimization",
        "overlap_comm:bool?",
        USED,
        "BucketConfig.overlap_communication; without effect in FSDP, which decides by itself.",
    ),
    Keys(
        "zero_optimization",
        "reduce_bucket_size:int",
        USED,
        "BucketConfig.bucket_size_mb: so many elements of 4 bytes. Without effect in FSDP.",
    ),
    Keys(
        "zero_optimization",
        "stage3_param_persistence_threshold:int param_persistence_threshold:int",
        USED,
        "Stage 3: units of fewer parameters are replicated (FsdpConfig.min_num_params).",
    ),
    Keys(
        "zero_optimization",
        "stage3_prefetch_bucket_size:int prefetch_bucket_size:int",
        USED,
        'Stage 3: 0 gathers units when they are needed (backward_prefetch="none"); any other size '
        "is one unit ahead.",
    ),
    Keys(
        "zero_optimization",
        "allgather_partitions:bool allgather_bucket_size:int reduce_scatter:bool "
        "contiguous_gradients:bool round_robin_gradients:bool "
        "use_multi_rank_bucket_allreduce:bool parameter_alignment:bool",
        NO_EFFECT,
        _SENDING,
    ),
    Keys(
        "zero_optimization",
        "stage3_max_live_parameters:int max_live_parameters:int stage3_max_reuse_distance:int "
        "max_reuse_distance:int stage3_model_persistence_threshold:int "
        "model_persistence_threshold:int stage3_module_granularity_threshold:int "
        "module_granularity_threshold:int sub_group_size:int "
        "stage3_use_all_reduce_for_fetch_params:bool use_all_reduce_for_fetch_params:bool "
        "stage3_allgather_sequential:bool allgather_sequential:bool leaf_module:dict",
        NO_EFFECT,
        _UNITS,
    ),
    Keys("zero_optimization.leaf_module", "", NO_EFFECT, _UNITS),
    Keys(
        "zero_optimization",
        "stage3_gather_16bit_weights_on_model_save:bool gather_16bit_weights_on_model_save:bool "
        "stage3_gather_fp16_weights_on_model_save:bool",
        NO_EFFECT,
        "engine.save_16bit_model() always gathers.",
    ),
    Keys(
        "zero_optimization",
        "ignore_unused_parameters:bool",
        USED,
        "BucketConfig.find_unused_parameters. FSDP takes passes in which no rank has used a "
        "parameter anyway.",
    ),
    Keys(
        "zero_optimization",
        "compute_grad_norm:bool load_from_fp32_weights:bool elastic_checkpoint:bool "
        "legacy_stage1:bool memory_efficient_linear:bool override_module_apply:bool "
        "pipeline_loading_checkpoint:bool log_trace_cache_warnings:bool enable_sanity_checks:bool "
        "grad_hooks:bool save_muon_momentum_buffer_in_memory:bool",
        NO_EFFECT,
        "They tune code of DeepSpeed's that is not there.",
    ),
    Keys(
        "zero_optimization",
        "zero_hpz_partition_size:int mics_shard_size:int",
        REFUSED,
        'FSDP\'s "hybrid" shards within groups: wrap the model with it by hand.',
        idle=(0, 1, -1),
    ),
    Keys(
        "zero_optimization",
        "mics_hierarchical_params_gather:bool",
        NO_EFFECT,
        "See mics_shard_size.",
    ),
    Keys(
        "zero_optimization",
        "zero_quantized_weights:bool zero_quantized_gradients:bool "
        "zero_quantized_nontrainable_weights:bool",
        REFUSED,
        _QUANTISED,
        idle=(False,),
    ),
    Keys("zero_optimization", "zeropp_loco_param:dict?", REFUSED, _QUANTISED, idle=(None,)),
    Keys("zero_optimization.zeropp_loco_param", "", REFUSED, "As the section."),
    Keys(
        "zero_optimization",
        "zenflow:dict?",
        REFUSED,
        "Gradients are not split by importance.",
        idle=(None,),
    ),
    Keys("zero_optimization.zenflow", "", REFUSED, "As the section."),
    Keys(
        "zero_optimization",
        "cpu_offload:bool? cpu_offload_param:bool? cpu_offload_params:bool?",
        USED,
        "As offload_optimizer and offload_param with the device cpu.",
    ),
    Keys("zero_optimization", "cpu_offload_use_pin_memory:bool?", NO_EFFECT, "As pin_memory."),
    Keys(
        "zero_optimization",
        "offload_param:dict? offload_optimizer:dict?",
        USED,
        "offload_param needs stage 3, offload_optimizer stage 1, 2 or 3.",
    ),
    Keys("zero_optimization.offload_param", "device:str", USED, _DEVICE),
    Keys("zero_optimization.offload_optimizer", "device:str", USED, _DEVICE),
    Keys(
        "zero_optimization.offload_param",
        "nvme_path:str? pin_memory:bool buffer_count:int buffer_size:int max_in_cpu:int",
        NO_EFFECT,
        "What is offloaded lies where the model lies, on the CPU, and is not copied.",
    ),
    Keys(
        "zero_optimization.offload_optimizer",
        "nvme_path:str? pin_memory:bool ratio:num buffer_count:int fast_init:bool pipeline:bool "
        "pipeline_read:bool pipeline_write:bool cpuadam_cores_perc:num",
        NO_EFFECT,
        "What is offloaded lies where the model lies, on the CPU, and is not copied.",
    ),
    Keys(
        "zero_optimization.offload_optimizer",
        "super_offload:bool",
        NO_EFFECT,
        "The optimizer steps where the model lies.",
    ),
    Keys("", "aio:dict", NO_EFFECT, _DISKS),
    Keys(
        "aio",
        "block_size:int queue_depth:int thread_count:int intra_op_parallelism:int "
        "single_submit:bool overlap_events:bool use_gds:bool",
        NO_EFFECT,
        _DISKS,
    ),
)
