"""Defines DeepSpeedConfig, which checks a configuration and translates it to this project's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.deepspeed import reading
from torsh_runtime.parallel.ddp.config import BucketConfig
from torsh_runtime.parallel.fsdp.config import (
    BackwardPrefetch,
    FsdpConfig,
    MixedPrecision,
    ShardingStrategy,
)

_BATCH, _MICRO, _STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "bfp16": "bfloat16"}
_DTYPES |= {name: name for name in ("float32", "float16", "bfloat16")}
_REFUSED = {"onebitadam", "zerooneadam", "onebitlamb", "lamb", "lion", "muon"}
_REFUSED |= {"muadam", "muadamw", "musgd"}
"""Lower-case names of optimizers that are DeepSpeed's own."""
_NEEDED = (
    "optimizer.params.lr",
    "scheduler.params.total_num_steps",
    "scheduler.params.warmup_num_steps",
)
"""Keys for which "auto" cannot be resolved here."""


class BatchSizes(NamedTuple):
    """Gives the number of samples in a step."""

    train: int
    """Samples of all ranks in all backward passes of a step."""
    micro: int
    """Samples of one rank in one backward pass."""
    accumulation: int
    """Backward passes in each step."""


class LossScale(NamedTuple):
    """Gives the rules for scaling losses in float16."""

    static: float
    """Fixed scale; 0 means that the scale follows overflows."""
    initial: float
    window: int
    hysteresis: int
    refills: bool
    """True if a step without overflow restores the hysteresis."""
    minimum: float


@dataclass(frozen=True)
class DeepSpeedConfig:
    """Holds a checked DeepSpeed configuration.

        config = DeepSpeedConfig.from_file("ds_config.json")
        model = tr.FullyShardedDataParallel(model, config=config.to_fsdp_config())

    Raises ConfigError, before anything else is done, naming all keys that are unknown, of a wrong
    type, refused or contradictory.
    """

    given: Mapping[str, Any]
    """The configuration as the JSON file has it."""
    auto: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace "auto", by dotted paths such as "optimizer.params.lr"."""
    values: Mapping[str, Any] = field(init=False)
    """The configuration without keys that are still "auto"."""

    def __post_init__(self) -> None:
        if not isinstance(self.given, Mapping):
            raise ConfigError(
                f"a DeepSpeed configuration is a dict or a file, and not {self.given!r}"
            )
        values = reading.with_values(self.given, self.auto)
        _check_optimizer(_at(values, "optimizer.type"))
        reading.check(values)
        missing = [path for path in _NEEDED if _at(values, path) == reading.AUTO]
        if missing:
            raise ConfigError(
                f'{", ".join(missing)} are "auto" in the DeepSpeed configuration, and nothing here '
                f"knows them: pass auto={{{missing[0]!r}: …}}, or write them into the file"
            )
        object.__setattr__(self, "values", _without_auto(values))
        self._check_together()

    @classmethod
    def from_file(
        cls, path: str | Path, *, auto: Mapping[str, Any] | None = None
    ) -> DeepSpeedConfig:
        """Read the configuration from a JSON file.

        auto: values that replace "auto", by dotted paths.
        """
        return cls(reading.read(path), auto or {})

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a dotted path, or the default if it is absent, null or "auto"."""
        found = _at(self.values, path)
        return default if found is None else found

    def is_auto(self, path: str) -> bool:
        """Return whether the value at a dotted path is "auto" and was not replaced."""
        return path not in self.auto and bool(_at(self.given, path) == reading.AUTO)

    @property
    def without_effect(self) -> list[str]:
        """Return the configuration's keys that have no effect here."""
        return reading.without_effect(self.values)

    @property
    def stage(self) -> int:
        """Return the stage of ZeRO, 0 to 3."""
        return int(self.get("zero_optimization.stage", 0))

    @property
    def computed_dtype(self) -> str | None:
        """Return the dtype of the copies used in passes; None means the parameters' own."""
        names = {"fp16": "float16", "bf16": "bfloat16"}
        return next((names[each] for each in names if self.get(f"{each}.enabled")), None)

    @property
    def autocast_dtype(self) -> str | None:
        """Return the dtype of torch.autocast around the model; None means no autocast."""
        if not self.get("torch_autocast.enabled"):
            return None
        return _dtype("torch_autocast.dtype", self.get("torch_autocast.dtype", "bfloat16"))

    @property
    def gradient_clipping(self) -> float:
        """Return the largest norm that gradients may have; 0 means any."""
        return float(self.get("gradient_clipping", 1.0))

    @property
    def loss_scale(self) -> LossScale | None:
        """Return how losses are scaled; None means that they are not."""
        if "float16" not in (self.computed_dtype, self.autocast_dtype):
            return None
        return LossScale(
            float(self.get("fp16.loss_scale", 0)),
            2.0 ** int(self.get("fp16.initial_scale_power", 16)),
            int(self.get("fp16.loss_scale_window", 1000)),
            int(self.get("fp16.hysteresis", 2)),
            bool(self.get("fp16.consecutive_hysteresis", False)),
            float(self.get("fp16.min_loss_scale", 1)),
        )

    @property
    def activation_checkpointing(self) -> bool:
        """Return whether units recompute their activations in the backward pass."""
        names = ("partition_activations", "cpu_checkpointing", "number_checkpoints")
        return any(self.get(f"activation_checkpointing.{name}") for name in names)

    @property
    def is_fully_sharded(self) -> bool:
        """Return whether FullyShardedDataParallel, not DistributedDataParallel, wraps the model."""
        is_mixed = self.computed_dtype is not None
        return self.stage > 0 or is_mixed or self.activation_checkpointing

    def batch_sizes(self, world_size: int) -> BatchSizes:
        """Return the batch sizes for `world_size` ranks.

        Raises ConfigError if they are inconsistent, or if none is given.
        """
        train, micro, steps = (self.get(name) for name in (_BATCH, _MICRO, _STEPS))
        if train is None and micro is None:
            raise ConfigError(
                f"the DeepSpeed configuration has neither {_BATCH} nor {_MICRO}: write one of them "
                f"into it, or pass auto={{{_MICRO!r}: …}}"
            )
        if micro is None:
            steps = steps or 1
            micro = train / (steps * world_size)
        elif train is None:
            steps = steps or 1
            train = micro * steps * world_size
        elif steps is None:
            steps = train / (micro * world_size)
        if train != micro * steps * world_size or micro % 1 or steps % 1:
            told = ", ".join(
                f"{name} {self.get(name)}" for name in (_BATCH, _MICRO, _STEPS) if self.get(name)
            )
            raise ConfigError(
                f"batch sizes do not multiply: {told}, on {world_size} ranks; {_BATCH} must be "
                f"{_MICRO} x {_STEPS} x ranks, all of them whole numbers"
            )
        return BatchSizes(int(train), int(micro), int(steps))

    def to_fsdp_config(self) -> FsdpConfig:
        """Return the configuration with which FullyShardedDataParallel carries out the stage."""
        strategies = (
            ShardingStrategy.NO_SHARD,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.SHARD_GRAD_OP,
            ShardingStrategy.FULL_SHARD,
        )
        named: dict[str, Any] = {}
        if self.stage == 3:
            smallest = self._of_zero("param_persistence_threshold")
            if smallest is not None:
                named["min_num_params"] = int(smallest)
            if self._of_zero("prefetch_bucket_size") == 0:
                named["backward_prefetch"] = BackwardPrefetch.NONE
        return FsdpConfig(
            sharding_strategy=strategies[self.stage],
            mixed_precision=MixedPrecision(
                self.computed_dtype, self._reduce_dtype, self.computed_dtype
            ),
            cpu_offload=any(self._offloads(what) for what in ("param", "optimizer")),
            activation_checkpointing=self.activation_checkpointing,
            **named,
        )

    def to_ddp_config(self) -> BucketConfig:
        """Return the configuration with which DistributedDataParallel averages gradients.

        Raises ConfigError for what it does not support: stages that shard, copies in other dtypes
        and activation checkpointing.
        """
        if self.is_fully_sharded:
            raise ConfigError(
                f"DistributedDataParallel has neither ZeRO (stage {self.stage}) nor fp16, bf16 and "
                f"activation checkpointing: use to_fsdp_config(), or torch_autocast"
            )
        named: dict[str, Any] = {}
        if self.get("zero_optimization.reduce_bucket_size"):
            named["bucket_size_mb"] = self.get("zero_optimization.reduce_bucket_size") * 4 / 2**20
        return BucketConfig(
            overlap_communication=self.get("zero_optimization.overlap_comm"),
            find_unused_parameters=self.get("zero_optimization.ignore_unused_parameters", True),
            reduce_dtype=self._reduce_dtype,
            **named,
        )

    @property
    def _reduce_dtype(self) -> str | None:
        name = self.get("communication_data_type")
        return None if name is None else _dtype("communication_data_type", name)

    def _of_zero(self, name: str) -> Any:
        """Return ZeRO's value by the name in DeepSpeed's documentation, or by that in its code."""
        found = self.get(f"zero_optimization.stage3_{name}")
        return self.get(f"zero_optimization.{name}") if found is None else found

    def _offloads(self, what: str) -> bool:
        """Return whether parameters ("param") or optimizer state ("optimizer") are on the CPU."""
        older = {
            "optimizer": ["cpu_offload"],
            "param": ["cpu_offload_param", "cpu_offload_params"],
        }[what]
        if any(self.get(f"zero_optimization.{name}") for name in older):
            return True
        section = self.get(f"zero_optimization.offload_{what}")
        return section is not None and section.get("device", "none") != "none"

    def _check_together(self) -> None:
        """Raise ConfigError naming all values that contradict each other or are invalid."""
        problems = [*self._contradictions(), *self._wrong_numbers()]
        if problems:
            raise ConfigError(f"the DeepSpeed configuration cannot be used: {'; '.join(problems)}")
        for path in ("communication_data_type", "torch_autocast.dtype"):
            if self.get(path) is not None:
                _dtype(path, self.get(path))

    def _contradictions(self) -> list[str]:
        modes = [n for n in ("fp16", "bf16", "torch_autocast") if self.get(f"{n}.enabled")]
        found = []
        if len(modes) > 1:
            found.append(f"{' and '.join(modes)} are enabled together: enable one of them")
        if self.get("zero_optimization") is True or not 0 <= self.stage <= 3:
            found.append('zero_optimization must be {"stage": 0}, 1, 2 or 3')
        for what in ("param", "optimizer"):
            device = self.get(f"zero_optimization.offload_{what}.device", "none")
            if device not in ("none", "cpu"):
                found.append(
                    f"zero_optimization.offload_{what}.device is {device!r}, and only cpu and none "
                    f"are possible here"
                )
        if self._offloads("param") and self.stage != 3:
            found.append(f"offload_param needs stage 3, and the stage is {self.stage}")
        if self._offloads("optimizer") and self.stage == 0:
            found.append("offload_optimizer needs stage 1, 2 or 3, and the stage is 0")
        train, micro, steps = (self.get(name) for name in (_BATCH, _MICRO, _STEPS))
        if train and micro and steps and train % (micro * steps):
            found.append(f"{_BATCH} {train} is no multiple of {_MICRO} {micro} x {_STEPS} {steps}")
        validation = str(self.get("checkpoint.tag_validation", "warn")).lower()
        if validation not in ("ignore", "warn", "fail"):
            found.append(f"checkpoint.tag_validation is {validation!r}: Ignore, Warn or Fail")
        return found

    def _wrong_numbers(self) -> list[str]:
        least = {_BATCH: 1, _MICRO: 1, _STEPS: 1, "gradient_clipping": 0, "steps_per_print": 1}
        least |= {"fp16.loss_scale": 0, "fp16.initial_scale_power": 0, "fp16.hysteresis": 1}
        least |= {"fp16.loss_scale_window": 1, "fp16.min_loss_scale": 0}
        least |= {"zero_optimization.reduce_bucket_size": 0}
        return [
            f"{path} is {self.get(path)}, and must be {number} or more"
            for path, number in least.items()
            if self.get(path) is not None and not self.get(path) >= number
        ]


def _at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _check_optimizer(kind: Any) -> None:
    if isinstance(kind, str) and kind.lower() in _REFUSED:
        raise ConfigError(
            f"optimizer.type {kind!r} is refused: it is DeepSpeed's own, and does not compute "
            f"elementwise or compresses what it sends. Take AdamW, or pass an optimizer to "
            f"initialize(). See the table in docs/deepspeed.md"
        )


def _without_auto(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_auto(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value != reading.AUTO
    }


def _dtype(path: str, name: str) -> str:
    plain = name.lower().removeprefix("torch.")
    if plain not in _DTYPES:
        raise ConfigError(f"{path} is {name!r}; it may be fp32, fp16 or bf16")
    return _DTYPES[plain]
