"""Checks that raise ConfigError for models that cannot be sharded, or not be trained then."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set

from torsh_runtime.errors import ConfigError
from torsh_runtime.framework import Module, framework_of
from torsh_runtime.framework.models import all_parameters, kind_of
from torsh_runtime.framework.trees import leaves
from torsh_runtime.parallel.fsdp.config import FsdpConfig
from torsh_runtime.parallel.fsdp.fsdp_param_group import FSDPParamGroup
from torsh_runtime.parallel.fsdp.wrapping import is_within


def check_parameters(model: Module, config: FsdpConfig) -> None:
    """Raise ConfigError for a model without parameters, or with some that cannot be sharded as
    the config says."""
    framework, named = framework_of(model), all_parameters(model)
    if not named:
        raise ConfigError("the model has no parameters: there is nothing to shard")
    for dtype in config.mixed_precision.dtypes():
        framework.dtype(dtype)
    devices = {kind_of(each)[1] for _, each in named}
    if config.offloads and not devices <= {"cpu", "meta"}:
        raise ConfigError(
            f"cpu_offload keeps what a rank has of a model where that is, which is on "
            f"{', '.join(sorted(devices))}: moving it from there is not supported, leave it out"
        )
    sparse = [
        name for name, each in model.named_modules() if framework.gives_sparse_gradients(each)
    ]
    if sparse:
        raise ConfigError(
            f"{sparse[0]!r} gives sparse gradients, which are not sharded: make it with "
            f"sparse=False, or use DistributedDataParallel, which averages them"
        )


def check_inner(
    model: Module,
    ranks: Iterable[int],
    inner: dict[str, tuple[int, ...]],
    sharded: Set[int],
) -> None:
    """Raise ConfigError if parts are sharded already over other ranks, or share a parameter with
    a part that is. inner: the ranks of those parts by their paths. sharded: id() of their
    parameters."""
    for path, others in inner.items():
        if others != tuple(ranks):
            raise ConfigError(
                f"{path!r} in the model is sharded over other ranks: give all wrappers of a "
                f"model the same process_group"
            )
    for name, module in model.named_modules():
        own = {id(parameter) for _, parameter in module.named_parameters(recurse=False)}
        if own & sharded and not _is_within_any(name, inner):
            raise ConfigError(
                f"{name!r} has a parameter of a part that is sharded already: wrap what shares "
                f"parameters together, or the whole model only"
            )


def check_outputs(unit: FSDPParamGroup, outputs: object) -> None:
    """Raise ConfigError if a unit that ranks have parts of returned tensors in an object that is
    not searched. It would not be noticed that a backward pass begins at them, so the parameters
    would not be gathered for it."""
    if unit.is_replicated or not unit.laid:
        return
    found = [*leaves(outputs)]
    if any(map(_wants_gradient, found)):
        return
    for each in found:
        if any(map(_wants_gradient, getattr(each, "__dict__", {}).values())):
            raise ConfigError(
                f"{unit.name or 'the model'!r} returned a {type(each).__name__}, in which "
                f"FullyShardedDataParallel does not look for tensors: return those that losses are "
                f"made of in lists, tuples, dicts or dataclasses"
            )


def _wants_gradient(value: object) -> bool:
    return getattr(value, "requires_grad", None) is True


def _is_within_any(name: str, paths: Collection[str]) -> bool:
    return any(is_within(name, path) for path in paths)
