"""Gives fully_shard()'s options, under torch's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.fsdp.config import (
    FsdpConfig,
    MixedPrecision,
    NoAutoWrap,
    ShardingStrategy,
)


@dataclass(frozen=True, slots=True)
class MixedPrecisionPolicy:
    """Selects the dtypes in which a module computes and communicates, like torch's class of this
    name.

    Each is one of torch's, one of numpy's or its name, and applies to floating point tensors; None
    is the parameters' own. Optimizers change parameters in their own dtype.

    Raises:
        ConfigError: For what is no floating point dtype.

    Example:
        ```python
        policy = tr.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        tr.fully_shard(model, mp_policy=policy)
        ```
    """

    param_dtype: Any = None
    """Dtype of parameters in forward and backward passes."""
    reduce_dtype: Any = None
    """Dtype in which gradients are averaged; None: param_dtype."""
    output_dtype: Any = None
    """Dtype that the module's outputs are cast to; None: they are not cast."""
    cast_forward_inputs: bool = True
    """Cast the module's inputs to param_dtype."""

    def __post_init__(self) -> None:
        checked = MixedPrecision(self.param_dtype, self.reduce_dtype, self.output_dtype)
        object.__setattr__(self, "param_dtype", checked.param_dtype)
        object.__setattr__(self, "reduce_dtype", checked.reduce_dtype)
        object.__setattr__(self, "output_dtype", checked.buffer_dtype)

    def in_config(self) -> MixedPrecision:
        """Return the part of it that FsdpConfig has."""
        return MixedPrecision(
            self.param_dtype, self.reduce_dtype, cast_forward_inputs=self.cast_forward_inputs
        )


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """Keeps parameters where they are, like torch's class of this name.

    Example:
        ```python
        tr.fully_shard(model, offload_policy=tr.OffloadPolicy())
        ```
    """


@dataclass(frozen=True, slots=True)
class CPUOffloadPolicy(OffloadPolicy):
    """Keeps parts, their gradients and the optimizer's state in the memory of the CPU.

    A model on the CPU does so anyway.

    Example:
        ```python
        tr.fully_shard(model, offload_policy=tr.CPUOffloadPolicy())
        ```
    """

    pin_memory: bool = True
    """Accepted for torch's sake; parts of a model on a GPU are in pinned memory in any case."""


def config_of(
    mp_policy: MixedPrecisionPolicy, offload_policy: OffloadPolicy, is_hybrid: bool, is_meta: bool
) -> FsdpConfig:
    """Return how the one unit that fully_shard() makes is sharded. is_meta: the program gives it
    values later. Raises ConfigError for policies of other classes."""
    for name, given, kind in (
        ("mp_policy", mp_policy, MixedPrecisionPolicy),
        ("offload_policy", offload_policy, OffloadPolicy),
    ):
        if not isinstance(given, kind):
            raise ConfigError(
                f"{name} is a {type(given).__module__}.{type(given).__name__}, and must be a "
                f"tr.{kind.__name__}: import it from torsh_runtime"
            )
    return FsdpConfig(
        min_num_params=0,
        auto_wrap_policy=NoAutoWrap(),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD if is_hybrid else "full",
        mixed_precision=mp_policy.in_config(),
        cpu_offload=isinstance(offload_policy, CPUOffloadPolicy),
        param_init_fn=_leave if is_meta else None,
    )


def _leave(module: object) -> None:
    """Leave a module's memory as it is."""
