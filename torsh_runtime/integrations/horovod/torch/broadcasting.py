"""Sends parameters, optimizer states and objects of one rank to all ranks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.horovod.torch.calls import Call
from torsh_runtime.integrations.horovod.torch.collectives import (
    Handle,
    broadcast_async_,
    synchronize,
)
from torsh_runtime.integrations.horovod.torch.world import (
    ProcessSet,
    global_process_set,
    rank,
)

Tensor = torch.Tensor


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Copy rank root_rank's tensors to all ranks.

    params: model.state_dict(), model.named_parameters(), or a list of tensors or of pairs of names
        and tensors. Raises ConfigError for anything else.
    """
    if isinstance(params, Mapping):
        pairs: Iterable[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, Tensor):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ConfigError(
            f"broadcast_parameters() takes a state_dict() or a list of tensors, not a "
            f"{type(params).__name__}"
        )
    handles = [broadcast_async_(each, root_rank, name) for name, each in pairs]
    for handle in handles:
        synchronize(handle)


class _Left(NamedTuple):
    """Describes a tensor in whose place it is sent."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None
) -> None:
    """Set all ranks' optimizers to the state and options of rank root_rank's optimizer.

    model: has no effect.
    """
    tensors: list[Tensor] = []
    tree = _without_tensors(optimizer.state_dict(), tensors) if rank() == root_rank else None
    tree = broadcast_object(tree, root_rank, "optimizer")
    if rank() != root_rank:
        tensors = []
        tree = _with_tensors(tree, tensors)
    broadcast_parameters([(f"optimizer.{n}", each) for n, each in enumerate(tensors)], root_rank)
    if rank() != root_rank:
        _load(optimizer, tree)


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the state, and keep the optimizer's group objects, which schedulers may refer to."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        group.update({name: each for name, each in loaded.items() if name != "params"})
    optimizer.param_groups = groups


def _without_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    """Return the tree without its tensors, which are appended to `tensors`."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return _Left(len(tensors) - 1, tuple(tree.shape), tree.dtype, tree.device.type)
    if isinstance(tree, dict):
        return {key: _without_tensors(each, tensors) for key, each in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_without_tensors(each, tensors) for each in tree)
    return tree


def _with_tensors(tree: Any, tensors: list[Tensor]) -> Any:
    """Return the tree with empty tensors in their places, and append them to `tensors` in order."""
    if isinstance(tree, _Left):
        tensors.append(torch.empty(tree.shape, dtype=tree.dtype, device=tree.device))
        return tensors[-1]
    if isinstance(tree, dict):
        return {key: _with_tensors(each, tensors) for key, each in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_with_tensors(each, tensors) for each in tree)
    return tree


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return rank root_rank's object, which must be picklable. That rank gets the object itself."""
    root = process_set.place(root_rank)
    is_root = rank() == root_rank
    pickled = pickle.dumps(obj) if is_root else b""  # fails before the others start to wait
    content = _exchange("broadcast_object", name, pickled, process_set, root)
    return obj if is_root else pickle.loads(content)  # noqa: S301  (from an authenticated rank)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return all ranks' objects in rank order. They must be picklable."""
    contents = _exchange("allgather_object", name, pickle.dumps(obj), process_set)
    return [pickle.loads(each) for each in contents]  # noqa: S301  (from authenticated ranks)


def _exchange(
    kind: str, name: str | None, content: bytes, process_set: ProcessSet, root: int = -1
) -> Any:
    call = Call(kind, process_set.name(kind) if name is None else name, root=root)
    return synchronize(Handle(process_set, call, (), content=content))
