"""Keys of batches, optimizers, precision, communication and checkpoints."""

from __future__ import annotations

from torsh_runtime.integrations.deepspeed.keys import NO_EFFECT, REFUSED, USED, Keys

_KERNELS = "DeepSpeed's own code is not loaded; torch's is used."
_COMPRESSED = (
    "It belongs to optimizers that compress what they send (OneBitAdam, ZeroOneAdam, OneBitLamb), "
    "which are refused: pass DDP a compressor (docs/compression.md)."
)

TRAINING = (
    Keys(
        "",
        "train_batch_size:int train_micro_batch_size_per_gpu:int gradient_accumulation_steps:int",
        USED,
        "The first is the product of the others and the number of ranks. What is absent or "
        '"auto" follows from the rest.',
    ),
    Keys(
        "",
        "managed_gradient_accumulation:bool",
        REFUSED,
        "engine.step() is called after each backward pass, and knows when it is to step.",
        idle=(True,),
    ),
    Keys(
        "",
        "gradient_clipping:num",
        USED,
        "Clips the norm of the whole gradient. 1.0 if absent, as in DeepSpeed; 0 clips nothing.",
    ),
    Keys("", "optimizer:dict scheduler:dict", USED, "See the keys in them."),
    Keys(
        "optimizer",
        "type:str params:dict",
        USED,
        "Adam, AdamW and all of torch.optim that compute elementwise, with the arguments of "
        "torch.optim's class. Adam is AdamW unless adam_w_mode is false, as in DeepSpeed, and "
        "fused unless torch_adam is true. Lamb, Lion, Muon, OneBitAdam, ZeroOneAdam, OneBitLamb "
        "and MuAdam are refused: pass an optimizer to initialize().",
    ),
    Keys("optimizer", "legacy_fusion:bool", NO_EFFECT, _KERNELS),
    Keys(
        "optimizer.params",
        "lr:num betas:list eps:num weight_decay:num momentum:num amsgrad:bool torch_adam:bool "
        "adam_w_mode:bool",
        USED,
        "So are all other arguments of torch.optim's class. weight_decay is 0 if absent, as in "
        "DeepSpeed's Adam; with torch_adam it is torch's default.",
    ),
    Keys(
        "optimizer.params",
        "bias_correction:bool",
        REFUSED,
        "torch's Adam always has it: pass an optimizer to initialize().",
        idle=(True,),
    ),
    Keys(
        "optimizer.params",
        "max_grad_norm:num",
        REFUSED,
        "Use gradient_clipping, as DeepSpeed says too.",
        idle=(0,),
    ),
    Keys("optimizer.params", "fp32_optimizer_states:bool", REFUSED, "They are.", idle=(True,)),
    Keys(
        "optimizer.params",
        "freeze_step cuda_aware comm_backend_name var_freeze_step var_update_scaler "
        "local_step_scaler local_step_clipper coeff_beta factor_max factor_min factor_threshold",
        REFUSED,
        _COMPRESSED,
    ),
    Keys(
        "optimizer.params",
        "max_coeff min_coeff muon_lr adam_lr ns_method",
        REFUSED,
        "It belongs to Lamb or Muon, which are refused: their steps are not elementwise.",
    ),
    Keys(
        "scheduler",
        "type:str params:dict",
        USED,
        "LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR, and all of "
        "torch.optim.lr_scheduler with their own arguments; a step each time the optimizer has "
        "stepped.",
    ),
    Keys(
        "scheduler.params",
        "warmup_min_lr warmup_max_lr warmup_num_steps:int warmup_type:str total_num_steps:int "
        "warmup_min_ratio:num cos_min_ratio:num",
        USED,
        "Of WarmupLR, WarmupDecayLR and WarmupCosineLR.",
    ),
    Keys(
        "scheduler.params",
        "lr_range_test_min_lr lr_range_test_step_size:int lr_range_test_step_rate:num "
        "lr_range_test_staircase:bool",
        USED,
        "Of LRRangeTest.",
    ),
    Keys(
        "scheduler.params",
        "cycle_min_lr cycle_max_lr decay_lr_rate:num cycle_first_step_size:int "
        "cycle_second_step_size:int? cycle_first_stair_count:int cycle_second_stair_count:int? "
        "decay_step_size:int cycle_momentum:bool cycle_min_mom cycle_max_mom decay_mom_rate:num",
        USED,
        "Of OneCycle.",
    ),
    Keys(
        "scheduler.params",
        "last_batch_iteration:int",
        REFUSED,
        "load_checkpoint() goes on where a training stood.",
        idle=(-1,),
    ),
    Keys("", "fp16:dict bf16:dict torch_autocast:dict", USED, "See the keys in them."),
    Keys(
        "fp16",
        "enabled:bool",
        USED,
        "Passes compute with float16 copies; parameters are float32 for the optimizer. Not "
        "together with bf16 or torch_autocast.",
    ),
    Keys("fp16", "auto_cast:bool", NO_EFFECT, "What the model is called with is always cast."),
    Keys(
        "fp16",
        "loss_scale:num initial_scale_power:int loss_scale_window:int hysteresis:int "
        "consecutive_hysteresis:bool min_loss_scale:num",
        USED,
        "loss_scale 0 is a scale that follows overflows, which all ranks see alike.",
    ),
    Keys(
        "fp16",
        "fp16_master_weights_and_grads:bool",
        REFUSED,
        "What the optimizer changes is float32.",
        idle=(False,),
    ),
    Keys("bf16", "enabled:bool", USED, "As fp16, with bfloat16 and without a scale."),
    Keys("bf16", "immediate_grad_update:bool", NO_EFFECT, "Gradients come as float32 anyway."),
    Keys(
        "bf16",
        "check_grad_overflow:bool check_overflow:bool",
        NO_EFFECT,
        "bfloat16 has the range of float32.",
    ),
    Keys(
        "bf16",
        "bf16_master_weights_and_grads:bool bf16_optimizer_states:bool",
        REFUSED,
        "What the optimizer changes is float32.",
        idle=(False,),
    ),
    Keys(
        "torch_autocast",
        "enabled:bool dtype:str",
        USED,
        "The model is called within torch.autocast; float16 has a loss scale too.",
    ),
    Keys(
        "torch_autocast",
        "lower_precision_safe_modules:list",
        NO_EFFECT,
        "Gradients are averaged in the parameters' own dtype, or in communication_data_type.",
    ),
    Keys("", "amp:dict", REFUSED, "It is Apex's: use fp16, bf16 or torch_autocast."),
    Keys("amp", "", REFUSED, "As the section."),
    Keys(
        "",
        "communication_data_type:str?",
        USED,
        "fp32, fp16 or bf16: gradients are averaged in it; else in the dtype of the passes.",
    ),
    Keys(
        "",
        "gradient_allreduce_op:str",
        REFUSED,
        "Gradients are averaged: multiply the loss by the number of ranks for sums.",
        idle=("mean",),
    ),
    Keys(
        "",
        "prescale_gradients:bool gradient_predivide_factor:num",
        NO_EFFECT,
        "Sums are divided by the number of ranks; that is the same but for rounding.",
    ),
    Keys(
        "",
        "sparse_gradients:bool",
        REFUSED,
        "Gradients of embeddings are whole here.",
        idle=(False,),
    ),
    Keys(
        "",
        "disable_allgather:bool seq_parallel_communication_data_type:str "
        "use_data_before_expert_parallelism:bool",
        NO_EFFECT,
        "They choose among ways of sending that are not there.",
    ),
    Keys(
        "",
        "sequence_parallel_size:int",
        REFUSED,
        "See docs/context-parallel.md.",
        idle=(0, 1),
    ),
    Keys("", "dataloader_drop_last:bool", USED, "For the loader of training_data."),
    Keys(
        "",
        "zero_allow_untested_optimizer:bool zero_force_ds_cpu_optimizer:bool",
        NO_EFFECT,
        "Any optimizer that treats each parameter by itself is taken, and others are refused at "
        "the first step.",
    ),
    Keys(
        "",
        "keep_in_fp32_modules",
        REFUSED,
        "The whole model computes in one dtype: use torch_autocast.",
        idle=(None, [], "auto"),
    ),
    Keys("", "data_types:dict checkpoint:dict", USED, "See the keys in them."),
    Keys(
        "data_types",
        "grad_accum_dtype:str?",
        REFUSED,
        "Gradients are added up in the dtype of the parameters, float32.",
        idle=(None, "fp32"),
    ),
    Keys(
        "data_types",
        "param_dtype buffer_dtype",
        REFUSED,
        "Use fp16, bf16 or torch_autocast.",
        idle=(None,),
    ),
    Keys(
        "checkpoint",
        "tag_validation:str",
        USED,
        "Ignore, Warn or Fail, if ranks call save_checkpoint() with different tags; rank 0's "
        "counts.",
    ),
    Keys(
        "checkpoint",
        "load_universal:bool",
        NO_EFFECT,
        "Any number of ranks and any stage loads every checkpoint of save_checkpoint().",
    ),
    Keys(
        "checkpoint",
        "use_node_local_storage:bool",
        REFUSED,
        "All ranks have to see the directory.",
        idle=(False,),
    ),
    Keys("checkpoint", "parallel_write:dict", NO_EFFECT, "Each rank writes what it has."),
    Keys("checkpoint", "writer", NO_EFFECT, "Each rank writes what it has."),
    Keys("checkpoint.parallel_write", "pipeline_stage:bool", NO_EFFECT, "There are no stages."),
    Keys(
        "",
        "activation_checkpointing:dict",
        USED,
        "See the keys in it.",
    ),
    Keys(
        "activation_checkpointing",
        "partition_activations:bool cpu_checkpointing:bool number_checkpoints",
        USED,
        "Any of them that is set: units of the model keep their inputs only, where these are, and "
        "compute everything once more in the backward pass.",
    ),
    Keys(
        "activation_checkpointing",
        "contiguous_memory_optimization:bool synchronize_checkpoint_boundary:bool profile:bool",
        NO_EFFECT,
        "They tune DeepSpeed's own recomputation.",
    ),
)
