"""Returns the state of models and optimizers, whole or this rank's part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from torsh_runtime.arrays.raw import framework_of
from torsh_runtime.checkpoint.memory import InMemory
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.state_dicts.options import (
    MODEL,
    OPTIMIZER,
    StateDictOptions,
    several,
)
from torsh_runtime.checkpoint.whole import WholeTensors, model_in, state_of
from torsh_runtime.errors import ConfigError
from torsh_runtime.layout import ShardedTensor
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.numpy_or_cupy import array_module
from torsh_runtime.parallel.state import Contents, contents_of, merged_values
from torsh_runtime.parallel.state.models import ModelState
from torsh_runtime.parallel.state.plain import decode
from torsh_runtime.parallel.state.whole_optimizers import as_piece, whole_state


def get_model_state_dict(
    model: Any,
    *,
    options: Any = None,
    mesh: DeviceMesh | None = None,
    process_group: Any = None,
) -> dict[str, Any]:
    """Return a model's state under the names that it has in one process, as torch's function.

    The model may be cut in any way: in FullyShardedDataParallel or DistributedDataParallel, by
    parallelize(), as a PipelineParallel, with experts, and in several of these. With
    `full_state_dict` all ranks call this, and tensors are collected one by one.

    Args:
        model: The model, of torch or torsh_runtime.nn.
        options: A StateDictOptions, this library's or torch's. None is the default of each.
        mesh: The mesh of layouts on modules that do not know where this rank is in it.
        process_group: The ranks. None is the default group, torch's if only torch has one, or this
            process alone if there is none.

    Returns:
        Tensors by name, and the extra state of modules. Whole tensors are copies; with
        `cpu_offload` rank 0 gets them, in the host's memory, and the others get an empty dict. They
        are on the model's device on all ranks otherwise. Without `full_state_dict` they are this
        rank's own, not copies: a ShardedTensor of each that is cut.

    Raises:
        ConfigError: On all ranks if a tensor cannot be made whole, or if other ranks call something
            else.
        TypeError: If `options` has neither class.

    Example:
        ```python
        options = tr.StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = tr.get_model_state_dict(model, options=options)
        if tr.get_rank() == 0:
            torch.save(state, "model.pt")
        ```
    """
    chosen, ranks = StateDictOptions.of(options), Ranks.of_model(process_group)
    frozen = set[str]()
    with suppress(ConfigError):  # which is raised on all ranks when they collect
        frozen = (
            ModelState(MODEL, model_in(model), mesh).frozen
            if chosen.ignore_frozen_params
            else frozen
        )
    what = "tr.get_model_state_dict()"
    found = _collected(state_of(model, mesh), MODEL, chosen, ranks, what, frozen)
    if found is None:
        return {}
    tensors = {name: _given(each) for name, each in found.tensors.items()}
    tensors |= {name: tensors[to] for name, to in found.aliases.items() if to in tensors}
    source = InMemory(found)
    values = {name: decode(each, None, source) for name, each in found.values.items()}
    inner = [name for name in tensors if any(name.startswith(f"{key}/") for key in values)]
    named = {name: each for name, each in tensors.items() if name not in inner} | values
    return {name.removeprefix(f"{MODEL}/"): each for name, each in named.items()}


def get_optimizer_state_dict(
    model: Any,
    optimizers: Any,
    *,
    options: Any = None,
    mesh: DeviceMesh | None = None,
    process_group: Any = None,
) -> dict[str, Any]:
    """Return the state of a model's optimizers by the names of parameters, as torch's function.

    With `full_state_dict` it is what one process would have: torch's own
    set_optimizer_state_dict() loads it, and so does load_state_dict() of an optimizer of the whole
    model's parameters in the same order. All ranks call this.

    Args:
        model: The model, as get_model_state_dict() takes it.
        optimizers: An optimizer of its parameters, of torch or torsh_runtime.optim, a
            DistributedOptimizer, or several optimizers.
        options: As get_model_state_dict().
        mesh: As get_model_state_dict().
        process_group: As get_model_state_dict().

    Returns:
        A dict of "state", as far as the optimizers have made it by their steps, and "param_groups".
        Which rank gets what is as with get_model_state_dict().

    Raises:
        ConfigError: On all ranks if an optimizer has parameters of another model, or state that
            belongs to pieces of parameters, as scales of blocks of 8 bit optimizers, and as
            get_model_state_dict().

    Example:
        ```python
        options = tr.StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = tr.get_optimizer_state_dict(model, optimizer, options=options)
        if tr.get_rank() == 0:
            torch.save(state, "optimizer.pt")
        ```
    """
    chosen, ranks = StateDictOptions.of(options), Ranks.of_model(process_group)
    what = "tr.get_optimizer_state_dict()"
    merged: dict[str, Any] = {}
    for optimizer in several(optimizers):
        state = state_of(model, mesh, optimizer=optimizer)
        found = _collected(state, OPTIMIZER, chosen, ranks, what)
        if found is not None:
            tensors = {name: as_piece(_given(each)) for name, each in found.tensors.items()}
            source = InMemory(Contents(tensors, found.values))
            own = whole_state(OPTIMIZER, source, "")
            merged["state"] = {**merged.get("state", {}), **own["state"]}
            merged["param_groups"] = [*merged.get("param_groups", []), *own["param_groups"]]
    return merged


def whole_state_dict(
    model: Any, mesh: DeviceMesh | None = None, process_group: Any = None
) -> dict[str, Any]:
    """Return a model's whole parameters and buffers on rank 0, and an empty dict elsewhere.

    It is get_model_state_dict() with `full_state_dict` and `cpu_offload`: the tensors are in the
    host's memory, with their own dtypes. All ranks call this; one tensor at a time is collected
    from the ranks that have it. tr.save_pretrained() needs memory for one tensor only.

    Args:
        model: The model, as get_model_state_dict() takes it.
        mesh: The mesh of layouts on modules that do not know where this rank is in it.
        process_group: The ranks. None is the default group, torch's if only torch has one, or this
            process alone if there is none.

    Raises:
        ConfigError: On all ranks if a tensor cannot be made whole, or if other ranks call something
            else.

    Example:
        ```python
        tensors = tr.whole_state_dict(model, mesh)
        if tr.get_rank() == 0:
            torch.save(tensors, "model.pt")
        ```
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options, mesh=mesh, process_group=process_group)


def _collected(
    state: Mapping[str, Any],
    part: str,
    chosen: StateDictOptions,
    ranks: Ranks,
    what: str,
    without: Iterable[str] = (),
) -> Contents | None:
    """Return the contents of one part of the state, whole or this rank's; None for a rank that gets
    none."""
    if chosen.full_state_dict:
        whole = WholeTensors(state, part, ranks, what, {*without})
        found = whole.contents(chosen.is_on_all)
        return _moved(found, None if chosen.cpu_offload else whole.like)
    own, prefix = contents_of(state, ranks), f"{part}/"
    names = {*own.tensors, *own.values, *own.aliases} - {prefix + name for name in without}
    is_own = {name for name in names if f"{name}/".startswith(prefix)}
    tensors = {name: each for name, each in own.tensors.items() if name in is_own}
    values = {name: each for name, each in own.values.items() if name in is_own}
    aliases = {name: to for name, to in own.aliases.items() if name in is_own and to in tensors}
    found = Contents(tensors, merged_values([values]), aliases)
    return _moved(found, None) if chosen.cpu_offload else found


def _moved(contents: Contents | None, like: Any) -> Contents | None:
    """Return the contents with all tensors on the device of `like`, the host's memory for None."""
    if contents is None:
        return None
    tensors = {n: ShardedTensor(_on(t.values, like), t.piece) for n, t in contents.tensors.items()}
    return Contents(tensors, contents.values, contents.aliases)


def _on(values: Any, like: Any) -> Any:
    if framework_of(values) == "torch":
        return values.to("cpu" if like is None else like.device)
    if like is None:
        return values.get() if hasattr(values, "get") else values
    return array_module(like).asarray(values)


def _given(tensor: ShardedTensor) -> Any:
    """Return the tensor itself if it is whole."""
    piece = tensor.piece
    return tensor.values.reshape(piece.global_shape) if piece.is_whole else tensor
