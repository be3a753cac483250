"""Gives the options of sharding, and chooses a model's units and dtypes by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

import numpy as np

from torsh_runtime.errors import ConfigError


class ShardingStrategy(Enum):
    """Selects what is divided among the ranks (ZeRO: Rajbhandari et al., SC 2020).

    Example:
        ```python
        strategy = tr.ShardingStrategy.SHARD_GRAD_OP  # or "grad-and-optimizer"
        model = tr.FullyShardedDataParallel(model, sharding_strategy=strategy)
        ```
    """

    FULL_SHARD = "full"
    """Parameters, gradients and the optimizer's state (stage 3)."""
    SHARD_GRAD_OP = "grad-and-optimizer"
    """Gradients and the optimizer's state, and parameters outside of a step (stage 2)."""
    NO_SHARD = "none"
    """Replication of everything, as with DistributedDataParallel."""
    HYBRID_SHARD = "hybrid"
    """Like FULL_SHARD among the ranks of one group, which other groups replicate."""


class BackwardPrefetch(Enum):
    """Selects when a backward pass asks for the next unit's parameters.

    It matters only if these have to be gathered.

    Example:
        ```python
        model = tr.FullyShardedDataParallel(model, backward_prefetch=tr.BackwardPrefetch.NONE)
        ```
    """

    BACKWARD_PRE = "pre"
    """Before it computes the gradients of the present one."""
    BACKWARD_POST = "post"
    """After that, when these are on their way."""
    NONE = "none"
    """Parameters are gathered only when they are needed."""


@dataclass(frozen=True, slots=True)
class SizeBasedAutoWrap:
    """Makes a module a unit if it has enough parameters that are in none of its own units.

    Example:
        ```python
        policy = tr.SizeBasedAutoWrap(min_num_params=1_000_000)
        model = tr.FullyShardedDataParallel(model, auto_wrap_policy=policy)
        ```
    """

    min_num_params: int = 1000
    """The smallest number of parameters of a unit."""


@dataclass(frozen=True, slots=True)
class ModuleTypeBasedAutoWrap:
    """Makes modules of these classes, or of classes of these names, units.

    Example:
        ```python
        policy = tr.ModuleTypeBasedAutoWrap(("LlamaDecoderLayer",))
        model = tr.FullyShardedDataParallel(model, auto_wrap_policy=policy)
        ```
    """

    module_types: tuple[type | str, ...]
    """The classes, or their names."""


@dataclass(frozen=True, slots=True)
class CustomAutoWrap:
    """Makes a module a unit if function(module) is true.

    Example:
        ```python
        policy = tr.CustomAutoWrap(lambda module: hasattr(module, "attention"))
        model = tr.FullyShardedDataParallel(model, auto_wrap_policy=policy)
        ```
    """

    function: Callable[[Any], bool]
    """A function of a module."""


@dataclass(frozen=True, slots=True)
class NoAutoWrap:
    """Makes the whole model one unit.

    Example:
        ```python
        model = tr.FullyShardedDataParallel(model, auto_wrap_policy=tr.NoAutoWrap())
        ```
    """


AutoWrapPolicy = SizeBasedAutoWrap | ModuleTypeBasedAutoWrap | CustomAutoWrap | NoAutoWrap


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """Limits how much may be in memory at a time.

    Raises:
        ConfigError: If use_orig_params is not True.

    Example:
        ```python
        memory = tr.MemoryConfig(limit_all_gathers=False)
        model = tr.FullyShardedDataParallel(model, memory_config=memory)
        ```
    """

    limit_all_gathers: bool = True
    """Gather at most one unit before it is needed. If False, all units that follow are."""
    use_orig_params: bool = True
    """The model's own parameters are what an optimizer gets; nothing else is there."""
    offload_to_cpu: bool = False
    """Equivalent to FsdpConfig.cpu_offload."""

    def __post_init__(self) -> None:
        if self.use_orig_params is not True:
            raise ConfigError(
                f"use_orig_params is {self.use_orig_params!r} and must be True: optimizers get the "
                f"model's own parameters, which are views of flat ones already, so that one flat "
                f"parameter instead of them would save nothing, and lose their names and groups"
            )


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """Selects the dtypes in which a model computes and communicates, like torch's class of this
    name.

    Each is one of torch's, one of numpy's or its name, and applies to floating point tensors; None
    is the parameters' own. Optimizers change parameters in their own dtype.

    Raises:
        ConfigError: For what is no floating point dtype.

    Example:
        ```python
        precision = tr.MixedPrecision(param_dtype="bfloat16", reduce_dtype="float32")
        model = tr.FullyShardedDataParallel(model, mixed_precision=precision)
        ```
    """

    param_dtype: Any = None
    """Dtype of parameters in forward and backward passes."""
    reduce_dtype: Any = None
    """Dtype in which gradients are averaged; None: param_dtype."""
    buffer_dtype: Any = None
    """Dtype of buffers, which are cast when the model is wrapped."""
    keep_low_precision_grads: bool = False
    """Give optimizers gradients in the dtype in which they were averaged."""
    cast_forward_inputs: bool = True
    """Cast the inputs of units to param_dtype."""

    def __post_init__(self) -> None:
        for name in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            object.__setattr__(self, name, _floating(name, getattr(self, name)))

    def dtypes(self) -> list[str]:
        """Return the names of the dtypes that were given."""
        return [*filter(None, (self.param_dtype, self.reduce_dtype, self.buffer_dtype))]


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpConfig:
    """Configures how a model is sharded. Instances are frozen.

    Raises:
        ConfigError: For invalid values, and from the wrapper on all ranks if they differ.

    Example:
        ```python
        config = tr.FsdpConfig(sharding_strategy="full", activation_checkpointing=True)
        model = tr.FullyShardedDataParallel(model, config=config)
        ```
    """

    min_num_params: int = 1000
    """A unit of fewer parameters is replicated."""
    auto_wrap_policy: AutoWrapPolicy = SizeBasedAutoWrap()
    """Selection of the modules that are units, whose parameters are gathered and freed together."""
    sharding_strategy: ShardingStrategy | str = ShardingStrategy.FULL_SHARD
    """Strategy, or its value, such as "full"."""
    memory_config: MemoryConfig = field(default_factory=MemoryConfig)
    """Limits of how much is in memory at a time."""
    backward_prefetch: BackwardPrefetch | str = BackwardPrefetch.BACKWARD_PRE
    """Prefetching, or its value, such as "pre"."""
    mixed_precision: MixedPrecision = field(default_factory=MixedPrecision)
    """Dtypes in which the model computes and communicates."""
    cpu_offload: bool = False
    """Keep parts, their gradients and therefore the optimizer's state in the memory of the CPU,
    as a model on the CPU does anyway. Replicated units stay on the GPU."""
    activation_checkpointing: bool = False
    """Let units within the model keep only their inputs, and compute everything once more in the
    backward pass (Chen et al., 2016). A unit within another such unit counts as a part of that."""
    activation_offload: bool = False
    """Let units within the model keep what their backward pass needs in the memory of the CPU, if
    they compute on a GPU."""
    param_init_fn: Callable[[Any], object] | None = None
    """Called with each module that has parameters or buffers on the meta device, once they have
    memory: gives them values. None: module.reset_parameters()."""
    device: Any = None
    """Device on which these get memory, by torch's name, number or class for it. None: the current
    GPU if the process group has a backend for GPUs, and else the CPU."""
    find_unused_parameters: bool = False
    """Let a parameter that this rank has not used in a pass count as one with zero gradients if
    another rank has used it. Gradients are then averaged at the end of backward passes, until when
    each rank keeps whole ones. A unit has to be called by all ranks anyway."""
    check_nan: bool = False
    """Raise GradientError on all ranks if averages are not finite after a backward pass."""

    def __post_init__(self) -> None:
        for name, kind in (
            ("sharding_strategy", ShardingStrategy),
            ("backward_prefetch", BackwardPrefetch),
        ):
            object.__setattr__(self, name, _member(name, kind, getattr(self, name)))
        if not isinstance(self.min_num_params, int) or self.min_num_params < 0:
            raise ConfigError(f"min_num_params must be a number >= 0, not {self.min_num_params!r}")
        if not isinstance(self.auto_wrap_policy, AutoWrapPolicy):
            raise ConfigError(
                f"auto_wrap_policy must be SizeBasedAutoWrap(), ModuleTypeBasedAutoWrap(), "
                f"CustomAutoWrap() or NoAutoWrap(), not {self.auto_wrap_policy!r}"
            )
        for name, wanted in (("mixed_precision", MixedPrecision), ("memory_config", MemoryConfig)):
            if not isinstance(getattr(self, name), wanted):
                raise ConfigError(
                    f"{name} must be a {wanted.__name__}(), not {getattr(self, name)!r}"
                )
        if self.activation_checkpointing and self.activation_offload:
            raise ConfigError(
                "units of activation_checkpointing keep no activations to be offloaded: leave one "
                "of activation_checkpointing and activation_offload out"
            )
        if self.param_init_fn is not None and not callable(self.param_init_fn):
            raise ConfigError(f"param_init_fn must be a function, not {self.param_init_fn!r}")

    @property
    def offloads(self) -> bool:
        """Return whether parts are to be stored in the memory of the CPU."""
        return self.cpu_offload or self.memory_config.offload_to_cpu

    def agreed(self) -> dict[str, object]:
        """Return the options that must be equal on all ranks."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        if isinstance(self.auto_wrap_policy, CustomAutoWrap):  # functions have no common name
            named["auto_wrap_policy"] = "CustomAutoWrap"
        # A rank may have values while others have none, and its own GPU.
        del named["param_init_fn"], named["device"]
        return named


def _member(name: str, kind: type[Enum], given: object) -> Enum:
    try:
        return kind(given)
    except ValueError:
        raise ConfigError(
            f"{name} must be one of {', '.join(repr(each.value) for each in kind)}, not {given!r}"
        ) from None


def _floating(option: str, given: Any) -> str | None:
    """Return the name of a floating point dtype, or raise ConfigError if it is none."""
    if given is None:
        return None
    name = str(given).removeprefix("torch.")
    if isinstance(given, type | np.dtype):
        name = np.dtype(given).name
    if not name.startswith(("float", "bfloat")):
        raise ConfigError(f"{option} must be a floating point dtype, not {given!r}")
    return name


@dataclass(frozen=True, slots=True)
class Precision:
    """Names the dtypes of a parameter's computations."""

    own: str
    """Dtype in which an optimizer changes the parameters."""
    computed: str
    """In forward and backward passes."""
    reduced: str
    """Dtype of gradients while they are averaged."""
    gradients: str
    """Dtype of the averages that an optimizer gets."""


def known_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields if FsdpConfig has them; else raise ConfigError."""
    unknown = sorted(given.keys() - set(FsdpConfig.__dataclass_fields__))
    if unknown:
        raise ConfigError(
            f"FullyShardedDataParallel has no option {', '.join(unknown)}; it has those of "
            f"FsdpConfig: {', '.join(FsdpConfig.__dataclass_fields__)}"
        )
    return given


def precision_of(own: str, mixed: MixedPrecision) -> Precision:
    """Return the precision for parameters of dtype `own`."""
    if not own.startswith(("float", "bfloat")):
        return Precision(own, own, own, own)
    computed: str = mixed.param_dtype or own
    reduced: str = mixed.reduce_dtype or computed
    return Precision(own, computed, reduced, reduced if mixed.keep_low_precision_grads else own)
