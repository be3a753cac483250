"""Keys of monitoring, and of features that this project has elsewhere or not at all."""

from __future__ import annotations

from torsh_runtime.integrations.deepspeed.keys import NO_EFFECT, REFUSED, USED, Keys

_MONITOR = (
    "Nothing would be written: log what engine.get_lr() and engine.get_global_grad_norm() tell on "
    "rank 0, or see docs/monitoring.md."
)
_TIMES = "See docs/monitoring.md for times of steps, and torshctl top and trace."
_SECTION = "As the section."
_PRUNING = "Models are not compressed here: do that before they are trained, or afterwards."
_DATA = "Choose samples in the program's own loader."
_GROUPS = (
    "weight_quantization activation_quantization sparse_pruning row_pruning head_pruning "
    "channel_pruning"
)

_COMPRESSION = (
    Keys("", "compression_training:dict", REFUSED, _PRUNING),
    Keys("compression_training", f"layer_reduction {_GROUPS}", REFUSED, _SECTION),
    Keys(
        "compression_training.layer_reduction",
        "enabled keep_number_layer module_name_prefix teacher_layer other_module_name",
        REFUSED,
        _SECTION,
    ),
    Keys("compression_training.*", "shared_parameters different_groups", REFUSED, _SECTION),
    Keys(
        "compression_training.*.shared_parameters",
        "enabled quantizer_kernel schedule_offset schedule_offset_end schedule_offset_stride "
        "quantize_groups quantize_verbose quantization_type rounding quantize_weight_in_forward "
        "fp16_mixed_quantize range_calibration method block_pattern dense_ratio excluded_modules "
        "num_heads",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "compression_training.*.shared_parameters.fp16_mixed_quantize",
        "enabled quantize_change_ratio",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "compression_training.*.different_groups.*",
        "params modules related_modules",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "compression_training.*.different_groups.*.params",
        "start_bits target_bits quantization_period bits dense_ratio",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "",
        "quantize_training:dict progressive_layer_drop:dict eigenvalue:dict",
        REFUSED,
        "It changes what is trained, and is not there.",
    ),
    Keys("quantize_training", "", REFUSED, _SECTION),
    Keys("progressive_layer_drop", "enabled theta gamma", REFUSED, _SECTION),
    Keys(
        "eigenvalue",
        "enabled verbose max_iter tol stability gas_boundary_resolution layer_name layer_num",
        REFUSED,
        _SECTION,
    ),
)

_PARALLEL = (
    Keys(
        "",
        "tensor_parallel:dict",
        REFUSED,
        "Ranks train on batches of their own: see docs/tensor-parallel.md.",
    ),
    Keys(
        "tensor_parallel",
        "autotp_size enabled preset_model tp_overlap_comm partition_config tp_size tp_grain_size "
        "mpu tp_group tp dtype injection_policy_tuple keep_module_on_host "
        "replace_with_kernel_inject",
        REFUSED,
        "As the section, if autotp_size is more than 1.",
    ),
    Keys(
        "tensor_parallel.partition_config",
        "use_default_specs layer_specs",
        REFUSED,
        "As the section; layer_specs have patterns, partition_type, partition_dim, shape and "
        "model_types.",
    ),
    Keys("", "expert_parallel:dict", REFUSED, "See docs/experts.md."),
    Keys(
        "expert_parallel",
        "enabled autoep_size preset_model moe_layer_pattern router_pattern expert_pattern "
        "expert_w1 expert_w2 expert_w3 num_experts_attr top_k_attr has_shared_experts "
        "shared_experts_pattern top_k score_func score_apply route_norm route_scale "
        "routed_scaling_factor num_expert_groups num_limited_groups load_balance_coeff "
        "use_grouped_mm disable_triton_grouped_mm expert_tensor_parallel_size "
        "shared_experts_gate_pattern num_experts",
        REFUSED,
        _SECTION,
    ),
    Keys("", "pipeline:dict", NO_EFFECT, "Of PipelineModule: see docs/pipeline-parallel.md."),
    Keys("pipeline", "", NO_EFFECT, "Of PipelineModule."),
    Keys(
        "",
        "hybrid_engine:dict",
        REFUSED,
        "There is no inference here: publish weights (docs/rpc.md).",
    ),
    Keys(
        "hybrid_engine",
        "enabled max_out_tokens inference_tp_size release_inference_cache pin_parameters "
        "tp_gather_partition_size enable_cuda_graph",
        REFUSED,
        _SECTION,
    ),
    Keys("", "sparse_attention:dict", REFUSED, "Models bring their own attention."),
    Keys(
        "sparse_attention",
        "mode block different_layout_per_head num_local_blocks num_global_blocks attention "
        "horizontal_global_attention num_different_global_patterns num_random_blocks "
        "local_window_blocks global_block_indices global_block_end_indices "
        "num_sliding_window_blocks",
        REFUSED,
        _SECTION,
    ),
    Keys("", "compile:dict", REFUSED, "Call torch.compile(engine.module) for units of it."),
    Keys(
        "compile",
        "deepcompile passes offload_activation offload_activation_pin_memory "
        "offload_parameters offload_opt_states double_buffer symmetric_memory debug_log "
        "sync_before_reduce sync_after_reduce sync_before_allgather sync_after_allgather "
        "keep_int_input_tensors keep_all_input_tensors free_activation "
        "free_activation_threshold enabled backend kwargs",
        REFUSED,
        "As the section, unless deepcompile is false.",
    ),
    Keys("", "graph_harvesting:bool", REFUSED, "There are no graphs.", idle=(False,)),
)

_WATCHING = (
    Keys("", "steps_per_print:int?", USED, "Rank 0 prints a line after so many steps."),
    Keys(
        "",
        "wall_clock_breakdown:bool memory_breakdown:bool dump_state:bool",
        NO_EFFECT,
        _TIMES,
    ),
    Keys(
        "",
        "log_level:str? disable_python_gc:bool vocabulary_size:int?",
        NO_EFFECT,
        "They tune DeepSpeed's own code.",
    ),
    Keys(
        "",
        "cuda_visible_devices",
        NO_EFFECT,
        "DeepSpeed does not read it either: the launcher says which devices a rank has.",
    ),
    Keys("", "flops_profiler:dict comms_logger:dict autotuning:dict", NO_EFFECT, _TIMES),
    Keys(
        "flops_profiler",
        "enabled:bool recompute_fwd_factor:num profile_step:int module_depth:int top_modules:int "
        "detailed:bool output_file:str?",
        NO_EFFECT,
        _TIMES,
    ),
    Keys(
        "comms_logger",
        "enabled:bool verbose:bool prof_all:bool debug:bool prof_ops:list",
        NO_EFFECT,
        _TIMES,
    ),
    Keys(
        "autotuning",
        "enabled:bool results_dir:str? exps_dir:str? overwrite:bool metric:str "
        "start_profile_step:int end_profile_step:int fast:bool max_train_batch_size:int? "
        "mp_size:int num_tuning_micro_batch_sizes:int tuner_type:str tuner_early_stopping:int "
        "tuner_num_trials:int arg_mappings:dict? model_info model_info_path metric_path "
        "min_train_batch_size:int max_train_micro_batch_size_per_gpu:int "
        "min_train_micro_batch_size_per_gpu:int",
        NO_EFFECT,
        "The command deepspeed --autotuning reads it, and not a training.",
    ),
    Keys("autotuning.arg_mappings", "", NO_EFFECT, "As the section."),
    Keys("", "tensorboard:dict wandb:dict comet:dict csv_monitor:dict", REFUSED, _MONITOR),
    Keys("tensorboard", "enabled output_path job_name", REFUSED, _SECTION),
    Keys("csv_monitor", "enabled output_path job_name", REFUSED, _SECTION),
    Keys("wandb", "enabled group team project", REFUSED, _SECTION),
    Keys(
        "comet",
        "enabled api_key workspace project samples_log_interval experiment_name experiment_key "
        "online mode",
        REFUSED,
        _SECTION,
    ),
)

_SAMPLING = (
    Keys("", "data_efficiency:dict curriculum_learning:dict", REFUSED, _DATA),
    Keys("data_efficiency", "enabled seed data_routing data_sampling", REFUSED, _SECTION),
    Keys("data_efficiency.data_routing", "enabled random_ltd", REFUSED, _SECTION),
    Keys(
        "data_efficiency.data_routing.random_ltd",
        "enabled total_layer_num random_ltd_layer_num random_ltd_layer_id model_mask_name "
        "model_type hidden_state_order random_ltd_schedule",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "data_efficiency.data_routing.random_ltd.random_ltd_schedule",
        "min_value max_value schedule_type schedule_config",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "data_efficiency.data_routing.random_ltd.random_ltd_schedule.schedule_config",
        "require_steps seq_per_step",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "data_efficiency.data_sampling",
        "enabled num_epochs num_workers pin_memory curriculum_learning dynamic_batching",
        REFUSED,
        _SECTION,
    ),
    Keys("data_efficiency.data_sampling.dynamic_batching", "", REFUSED, _SECTION),
    Keys(
        "data_efficiency.data_sampling.curriculum_learning",
        "enabled data_cluster_path curriculum_metrics",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*",
        "index_to_sample_path index_to_metric_path difficulty_type clustering_type min_difficulty "
        "max_difficulty schedule_type schedule_config",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.*.schedule_config",
        "total_curriculum_step difficulty_step root_degree difficulty max_step",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "curriculum_learning",
        "enabled curriculum_type min_difficulty max_difficulty schedule_type schedule_config",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "curriculum_learning.schedule_config",
        "total_curriculum_step difficulty_step root_degree difficulty max_step",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "",
        "elasticity:dict",
        REFUSED,
        "torshrun --nnodes 1:4 changes the number of nodes; say train_batch_size and one of the "
        "other sizes, and the third follows.",
    ),
    Keys(
        "elasticity",
        "enabled max_train_batch_size micro_batch_sizes min_gpus max_gpus min_time version "
        "ignore_non_elastic_batch_info num_gpus_per_node model_parallel_size prefer_larger_batch",
        REFUSED,
        _SECTION,
    ),
    Keys(
        "",
        "nebula:dict datastates_ckpt:dict",
        REFUSED,
        "save_checkpoint() writes with this project's own Checkpointer.",
    ),
    Keys("nebula", "", REFUSED, _SECTION),
    Keys("datastates_ckpt", "", REFUSED, _SECTION),
)

OTHERS = (*_PARALLEL, *_WATCHING, *_SAMPLING, *_COMPRESSION)
