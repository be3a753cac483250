"""Lets models that torch's fully_shard() (FSDP2) has sharded go on after the loss of a worker.

torch resets a broken pass by itself; what is beside that here is listed, by class, with all
attributes that the versions of torch have for which this was tested.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor

from torsh_runtime.arrays.raw import empty
from torsh_runtime.layout import Piece, ShardedTensor
from torsh_runtime.parallel.state import Contents, Restoration
from torsh_runtime.parallel.state.contents import Source
from torsh_runtime.parallel.state.plain import decode, encode

_FLAGS = (
    "all_reduce_grads",
    "force_sum_reduction_for_comms",
    "gradient_divide_factor",
    "reduce_grads",
    "reduce_scatter_max_input_buffers",
    "reduce_scatter_unused_params",
    "reshard_after_backward",
    "unshard_async_op",
    "unshard_in_backward",
)
"""Attributes that a program may set of a group of parameters, and that are restored for a repeated
step."""
_KNOWN = {
    "FSDPState": "_auto_reshard_after_forward _comm_ctx _device _device_handle _fsdp_param_groups "
    "_is_root _modules _modules_to_run_forward _mp_policy _post_forward_hook_handle "
    "_pre_forward_hook_handle _state_ctx _states_to_backward_prefetch _states_to_forward_prefetch "
    "_training_state",
    "FSDPStateContext": "all_states is_last_backward iter_forward_root "
    "post_backward_final_callback_queued post_optim_event",
    "FSDPCommContext": "_last_post_reduce_events all_gather_copy_in_stream all_gather_state "
    "all_gather_stream all_reduce_stream device_handle post_forward_order "
    "reduce_scatter_max_input_buffers reduce_scatter_states reduce_scatter_stream",
    "FSDPParamGroup": "_all_gather_comm _all_gather_output _all_gather_result _all_reduce_hook "
    "_all_reduce_hook_stream _all_reduce_state _module_fqn "
    "_module_to_pre_load_state_dict_hook_handle _module_to_pre_save_state_dict_hook_handle "
    "_num_param_groups _orig_dtype _param_group_index _partial_reduce_output "
    "_post_forward_indices _post_reduce_event _reduce_dtype _reduce_scatter_comm "
    "_reset_sharded_params _reshard_after_forward_event _sharded_state _training_state comm_ctx "
    "device device_handle fsdp_params mesh_info modules mp_policy offload_policy "
    "post_forward_mesh_info " + " ".join(_FLAGS),
    "FSDPParam": "_contiguous_orig_stride _extensions_data _module_info _orig_param_uid "
    "_orig_size _param_fqn _post_load_hook_handle _shard_mesh _sharded_param_data "
    "_sharded_post_forward_param _sharded_post_forward_param_data _sharding_spec "
    "_spmd_grad_placements _spmd_init_local_type _spmd_mesh _spmd_partition_spec "
    "_spmd_placements _spmd_restore_mesh _spmd_restore_type _tp_spec _unsharded_dtensor_spec "
    "_unsharded_inner_tensors _unsharded_param all_gather_outputs "
    "contiguous_sharded_post_forward_stride contiguous_sharded_stride device fsdp_placement "
    "grad_offload_event is_dtensor is_spmd_types mesh_info mp_policy offload_to_cpu orig_dtype "
    "padded_sharded_param_size param_dtype pin_memory post_forward_mesh_info reduce_dtype "
    "sharded_param sharded_post_forward_size sharded_size sharded_state "
    "unsharded_accumulated_grad",
}
"""Names of the attributes of torch 2.13's and 2.14's classes, by class."""


class TorchShards:
    """Keeps and restores models that torch has sharded, and their optimizers."""

    def __init__(self, models: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Find the models' states and parameters, while they are sharded."""
        self._optimizers = optimizers
        self._states = [*dict.fromkeys(s for each in models.values() for s in states_of(each))]
        self._flags = [self._flags_of(each) for each in self._groups()]
        self._is_last = [each._state_ctx.is_last_backward for each in self._states]
        for each in self._groups():
            each._to_sharded()
        self._parameters = {
            f"{name}/{key}": parameter
            for name, model in models.items()
            for key, parameter in model.named_parameters()
        }

    @property
    def place(self) -> int:
        """Return a number that ranks have in common which have the same parts of all models."""
        return dist.get_rank()

    def contents(self) -> Contents:
        """Return this rank's parts of parameters, and of the states that optimizers have of
        them."""
        contents = Contents()
        for name, parameter in self._parameters.items():
            contents.tensors[name] = _whole(_local(parameter))
        for name, optimizer in self._optimizers.items():
            kept = [self._kept(optimizer.state.get(each, {})) for each in _stepped(optimizer)]
            contents.values[name] = encode(kept, name, contents.tensors)
        return contents

    def load(self, version: Source) -> None:
        """Take the state that a version has. Raises CheckpointError if it does not fit."""
        for name, parameter in self._parameters.items():
            version.read(name, _whole(_local(parameter)))
        for name, optimizer in self._optimizers.items():
            kept = decode(version.values[name], None, version)
            optimizer.state.clear()
            for parameter, (parts, others) in zip(_stepped(optimizer), kept, strict=True):
                if parts or others:
                    made = {key: _like(parameter, each) for key, each in parts.items()}
                    optimizer.state[parameter] = {**others, **made}

    @property
    def can_be_cut_anew(self) -> bool:
        """Return False: torch's parameters keep the mesh with which they were made."""
        return False

    def restoration(self, source: Source) -> Restoration:
        """Refuse to take the state from parts of other ranks."""
        raise NotImplementedError

    def gradient(self, parameter: Any) -> ShardedTensor | None:
        """Return this rank's part of a gradient; None if there is none."""
        return None if parameter.grad is None else _whole(_local(parameter.grad))

    def room_for_gradient(self, parameter: Any, dtype: str) -> ShardedTensor:
        """Return memory for this rank's part of a gradient."""
        return _whole(empty("torch", tuple(_local(parameter).shape), dtype))

    def give_gradient(self, parameter: Any, values: Any) -> None:
        """Let a parameter have these values as its gradient."""
        parameter.grad = _like(parameter, values) if isinstance(parameter, DTensor) else values

    def note_flags(self) -> None:
        """Remember the flags with which a step begins."""
        self._flags = [self._flags_of(each) for each in self._groups()]
        self._is_last = [each._state_ctx.is_last_backward for each in self._states]

    def begin_anew(self) -> bool:
        """Drop what is left of passes that were broken off, as torch's _reset_iter_state() does,
        without waiting for operations of the former round. Return False: the part is the same."""
        for group, flags in zip(self._groups(), self._flags, strict=True):
            group._all_gather_result = None
            for name, value in flags.items():
                setattr(group, name, value)
        for state, is_last in zip(self._states, self._is_last, strict=True):
            if state._is_root:
                state._reset_iter_state()
            state._state_ctx.is_last_backward = is_last
        drop_kept(self._states)
        for parameter in self._parameters.values():
            parameter.grad = None
        return False

    def _groups(self) -> Iterator[Any]:
        return (group for each in self._states for group in each._fsdp_param_groups)

    def _flags_of(self, group: Any) -> dict[str, Any]:
        return {name: getattr(group, name) for name in _FLAGS if hasattr(group, name)}

    def _kept(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is cut as the parameter is, and what else an optimizer has of it."""
        cut = {key: _local(each) for key, each in state.items() if isinstance(each, DTensor)}
        return cut, {key: each for key, each in state.items() if key not in cut}


def states_of(model: Any) -> list[Any]:
    """Return the states of modules of a model that torch's fully_shard() was called for."""
    modules = (each for each in model.modules() if isinstance(each, FSDPModule))
    return [*dict.fromkeys(each._get_fsdp_state() for each in modules)]


def drop_kept(states: Iterable[Any]) -> None:
    """Drop whole gradients that were to be averaged later, which zero_grad() leaves."""
    for group in (group for each in states for group in each._fsdp_param_groups):
        for parameter in group.fsdp_params:
            parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None


def problem_of(model: Any) -> str:
    """Return why a model that torch's fully_shard() has sharded cannot be recovered, or ""."""
    states = states_of(model)
    groups = [group for state in states for group in state._fsdp_param_groups]
    parameters = [each for group in groups for each in group.fsdp_params]
    contexts = [ctx for each in states for ctx in (each._state_ctx, each._comm_ctx)]
    for thing in (*states, *contexts, *groups, *parameters):
        kind = type(thing).__name__
        if unknown := vars(thing).keys() - {*_KNOWN.get(kind, "").split()}:
            return (
                f"torch {torch.__version__}'s {kind} of fully_shard() has {min(unknown)!r}, which "
                f"is not known here: use a version of torch that docs/recovery.md names"
            )
    if not all(hasattr(each, "_reset_iter_state") for each in (*states, *groups)):
        return f"torch {torch.__version__}'s fully_shard() cannot drop a broken pass"
    managed = {id(each.sharded_param) for each in parameters}
    return next(filter(None, map(_problem_of_group, groups)), "") or _problem_of_rest(
        model, managed
    )


def _problem_of_group(group: Any) -> str:
    mesh, after = group.mesh_info, group.post_forward_mesh_info
    ranks = [mesh] if after is None else [mesh, after]
    if type(mesh).__name__ != "FSDPMeshInfo":
        return "it is sharded in hybrid: leave mesh out"
    if any(each.shard_process_group is not dist.group.WORLD for each in ranks):
        return "it is not sharded over the default group alone: leave mesh out"
    if getattr(mesh, "reduce_scatter_process_group", None) is not None:
        return "it reduces gradients over a group of its own"
    if group.device.type != "cpu":
        return "it is on a GPU"
    if isinstance(group.offload_policy, CPUOffloadPolicy):
        return "it is offloaded to the memory of the CPU: leave offload_policy out"
    comms = (group._all_gather_comm, group._reduce_scatter_comm)
    if group._all_reduce_hook or not all(type(c).__name__.startswith("Default") for c in comms):
        return "it communicates by hooks or functions of the program's own: leave these out"
    return ""


def _problem_of_rest(model: Any, managed: Set[int]) -> str:
    for name, each in model.named_parameters():
        if isinstance(each, DTensor) and id(each) not in managed:
            return f"{name!r} is a DTensor that fully_shard() does not have: shard it, too"
    return ""


def forgotten(models: Iterable[Any]) -> Any:
    """Return a model that torch's fully_shard() has sharded and none of these has, or None."""
    known = {id(module) for model in models for module in model.modules()}
    gc.collect()  # it may be gone, and only its cycles be left
    live = (each for each in gc.get_objects() if issubclass(type(each), FSDPModule))
    return next((each for each in live if id(each) not in known), None)


def _stepped(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _local(tensor: Any) -> Any:
    """Return this rank's part of a DTensor, in the same memory."""
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).detach()


def _whole(values: Any) -> ShardedTensor:
    return ShardedTensor(values, Piece.whole(tuple(values.shape)))


def _like(parameter: Any, values: Any) -> Any:
    """Return a DTensor of which this rank has these values, cut as the parameter is."""
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        values,
        mesh,
        placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
