"""Shards modules in place: fully_shard(), in the spelling of torch's function of this name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Framework, framework_of_model
from torsh_runtime.framework.models import around_forward, cast_inputs, is_meta
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.fsdp.fsdp_module import FSDPModule, register_generation
from torsh_runtime.parallel.fsdp.guard import FUNCTION
from torsh_runtime.parallel.fsdp.policies import MixedPrecisionPolicy, OffloadPolicy, config_of
from torsh_runtime.parallel.fsdp.sharding import Sharding


def fully_shard(
    module: Any,
    *,
    mesh: Any = None,
    reshard_after_forward: bool | int | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: Iterable[Any] | None = None,
    device: Any = None,
) -> Any:
    """Shard a module's parameters over the ranks, in place, as torch's function of this name.

    Call it for each block of a model and then for the model itself: each call makes one unit, whose
    parameters are gathered and freed together, of all that no call before has sharded. The module
    stays the object that it is, with the same names of parameters, and gets the methods of
    FSDPModule. All ranks call it alike, and get rank 0's values. Parameters and gradients are this
    rank's parts outside of passes, as with FullyShardedDataParallel.

    Parameters on torch's meta device get memory on `device`, one unit at a time, and their values
    afterwards: by model.to_empty(device=…) and the model's own functions, which see whole
    parameters and whose values are rank 0's, or by load_state_dict().

    Args:
        module: A module of torch or torsh_runtime.nn; or a list of them, each of which becomes a
            unit of its own.
        mesh: The ranks: None is the default group, or torch's if only torch has one; a DeviceMesh
            of one dimension; or one of two, over whose first the shards are replicated. It may be a
            mesh of torch.distributed with groups of backend "torsh".
        reshard_after_forward: Whether parameters are freed between the forward and the backward
            pass. None frees those of all modules but the one that the pass began with. A number, as
            of a node's ranks, lets so many consecutive ranks keep them together: the backward pass
            gathers them from these only. In memory that a node's ranks share they stay whole.
        mp_policy: The dtypes in which the module computes and communicates.
        offload_policy: Where parts are.
        ignored_params: Parameters that are left as they are: neither sharded, nor sent from rank
            0, nor are their gradients averaged.
        device: Where parameters on the meta device get memory. None is the current GPU if the ranks
            have a backend for GPUs, and else the CPU.

    Returns:
        The module, or the list.

    Raises:
        ConfigError: On all ranks if modules or options differ; for a module that is sharded
            already, has no parameters, or shares some with a part that is sharded already; and for
            a reshard_after_forward that does not divide the number of ranks.
        CommError: If an exchange among the ranks fails. Forward and backward passes raise it, too.

    Example:
        ```python
        for block in model.blocks:
            tr.fully_shard(block)
        tr.fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())  # after the model is sharded
        loss(model(batch)).backward()
        optimizer.step()
        ```
    """
    shard = partial(
        _shard,
        mesh=mesh,
        reshard_after_forward=reshard_after_forward,
        mp_policy=mp_policy or MixedPrecisionPolicy(),
        offload_policy=offload_policy or OffloadPolicy(),
        ignored=frozenset(map(id, ignored_params or ())),
        device=device,
    )
    if isinstance(module, list | tuple):
        for each in module:
            shard(each)
    else:
        shard(module)
    return module


def _shard(
    module: Any,
    mesh: Any,
    reshard_after_forward: bool | int | None,
    mp_policy: MixedPrecisionPolicy,
    offload_policy: OffloadPolicy,
    ignored: frozenset[int],
    device: Any,
) -> None:
    framework = framework_of_model(module)
    ranks, is_hybrid = _ranks(mesh)
    awaits = any(is_meta(each) for _, each in module.named_modules())
    config = replace(config_of(mp_policy, offload_policy, is_hybrid, awaits), device=device)
    sharding = Sharding(module, config, ranks, FUNCTION, ignored, reshard_after_forward)
    if mp_policy.output_dtype is not None:
        around_forward(module, partial(_with_outputs, framework, mp_policy.output_dtype))
    vars(module)["_sharding"] = sharding
    kind: type = type(module)
    module.__class__ = _class_of(kind)
    register_generation(module)
    if awaits:
        sharding.await_values()


def _ranks(mesh: Any) -> tuple[Any, bool]:
    """Return what a Sharding takes as its ranks, and whether they are shards and replicas."""
    dims = len(mesh.mesh_dim_names) if isinstance(mesh, DeviceMesh) else getattr(mesh, "ndim", 1)
    if dims > 2:
        raise ConfigError(
            f"mesh has {dims} dimensions: pass one to shard over, or two of which the first is "
            f"for replicas, as mesh['dp']"
        )
    if mesh is None or isinstance(mesh, DeviceMesh):
        return mesh, dims == 2
    if not hasattr(mesh, "get_group"):  # it is a group
        return mesh, False
    groups = [mesh.get_group(dim) for dim in range(dims)]
    return ((groups[1], groups[0]), True) if dims == 2 else (groups[0], False)


def _with_outputs(framework: Framework, dtype: str, call: Any, inputs: Any, named: Any) -> Any:
    return cast_inputs(framework, call(*inputs, **named), dtype)


@cache
def _class_of(module_class: type) -> type[FSDPModule]:
    """Return the class that modules of this class get, under the name that torch gives it."""
    own = {"__module__": __name__, "_original_class": module_class}
    return type(f"FSDP{module_class.__name__}", (FSDPModule, module_class), own)
