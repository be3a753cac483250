"""How a model is sharded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from torsh_runtime.errors import ConfigError


class ShardingStrategy(Enum):
    """What each rank has a part of only (ZeRO: Rajbhandari et al., SC 2020)."""

    FULL_SHARD = "full"
    """Parameters, gradients and the optimizer's state (stage 3)."""
    SHARD_GRAD_OP = "grad-and-optimizer"
    """Gradients and the optimizer's state, and parameters outside of a step (stage 2)."""
    NO_SHARD = "none"
    """Nothing, as with DistributedDataParallel."""
    HYBRID_SHARD = "hybrid"
    """As FULL_SHARD among the ranks of one group, which others replicate."""


class BackwardPrefetch(Enum):
    """When a backward pass asks for the parameters of the next unit, where they are gathered."""

    BACKWARD_PRE = "pre"
    """Before it computes the gradients of the present one."""
    BACKWARD_POST = "post"
    """After that, when these are on their way."""
    NONE = "none"
    """When they are needed."""


@dataclass(frozen=True, slots=True)
class SizeBasedAutoWrap:
    """A module is a unit if it has at least so many parameters that are in none of its own."""

    min_num_params: int = 1000


@dataclass(frozen=True, slots=True)
class ModuleTypeBasedAutoWrap:
    """Modules of these classes, or of classes of these names, are units."""

    module_types: tuple[type | str, ...]


@dataclass(frozen=True, slots=True)
class CustomAutoWrap:
    """A module is a unit if function(module) is true."""

    function: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class NoAutoWrap:
    """The whole model is one unit."""


AutoWrapPolicy = SizeBasedAutoWrap | ModuleTypeBasedAutoWrap | CustomAutoWrap | NoAutoWrap


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """How much may be in memory at a time."""

    limit_all_gathers: bool = True
    """Whether at most one unit is gathered before it is needed; else all that follow are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpConfig:
    """Frozen. ConfigError for values that make no sense, and from the wrapper on all ranks if they
    differ."""

    min_num_params: int = 1000
    """A unit of fewer parameters is replicated."""
    auto_wrap_policy: AutoWrapPolicy = SizeBasedAutoWrap()
    """Which modules are units, whose parameters are gathered and let go together."""
    sharding_strategy: ShardingStrategy | str = ShardingStrategy.FULL_SHARD
    """Or its value, such as "full"."""
    memory_config: MemoryConfig = field(default_factory=MemoryConfig)
    backward_prefetch: BackwardPrefetch | str = BackwardPrefetch.BACKWARD_PRE
    """Or its value, such as "pre"."""

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

    def agreed(self) -> dict[str, object]:
        """The options that have to be the same on all ranks."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        if isinstance(self.auto_wrap_policy, CustomAutoWrap):  # functions have no common name
            named["auto_wrap_policy"] = "CustomAutoWrap"
        return named


def _member(name: str, kind: type[Enum], given: object) -> Enum:
    try:
        return kind(given)
    except ValueError:
        raise ConfigError(
            f"{name} must be one of {', '.join(repr(each.value) for each in kind)}, not {given!r}"
        ) from None
