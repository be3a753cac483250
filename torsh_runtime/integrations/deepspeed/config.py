"""DeepSpeedConfig: a DeepSpeed configuration, checked, and in this project's terms."""

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
"""Optimizers that are DeepSpeed's own, in small letters."""
_NEEDED = (
    "optimizer.params.lr",
    "scheduler.params.total_num_steps",
    "scheduler.params.warmup_num_steps",
)
"""Keys for whose "auto" no value can be found here."""


class BatchSizes(NamedTuple):
    """How many samples make a step."""

    train: int
    """On all ranks, in all backward passes."""
    micro: int
    """On a rank, in one backward pass."""
    accumulation: int
    """Backward passes for each step."""


class LossScale(NamedTuple):
    """How losses are scaled for float16."""

    static: float
    """0: the scale follows overflows."""
    initial: float
    window: int
    hysteresis: int
    refills: bool
    """Whether a step without overflow restores the hysteresis."""
    minimum: float


@dataclass(frozen=True)
class DeepSpeedConfig:
    """A DeepSpeed configuration. ConfigError, before anything else is done, that names all keys
    that are unknown, of a wrong type, refused or contradictory.

        config = DeepSpeedConfig.from_file("ds_config.json")
        model = tr.FullyShardedDataParallel(model, config=config.to_fsdp_config())
    """

    given: Mapping[str, Any]
    """The configuration, as the JSON file has it."""
    auto: Mapping[str, Any] = field(default_factory=dict)
    """Values in place of "auto", by dotted paths such as "optimizer.params.lr"."""
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
        """The configuration in a JSON file. auto: values in place of "auto", by dotted paths."""
        return cls(reading.read(path), auto or {})

    def get(self, path: str, default: Any = None) -> Any:
        """The value at a dotted path; the default if it is absent, null or "auto"."""
        found = _at(self.values, path)
        return default if found is None else found

    def is_auto(self, path: str) -> bool:
        """Whether the value at a dotted path is "auto", and none was given in its place."""
        return path not in self.auto and bool(_at(self.given, path) == reading.AUTO)

    @property
    def without_effect(self) -> list[str]:
        """The keys that are given and change nothing here."""
        return reading.without_effect(self.values)

    @property
    def stage(self) -> int:
        """The stage of ZeRO, 0 to 3."""
        return int(self.get("zero_optimization.stage", 0))

    @property
    def computed_dtype(self) -> str | None:
        """The dtype of copies that passes compute with; None: the parameters' own."""
        names = {"fp16": "float16", "bf16": "bfloat16"}
        return next((names[each] for each in names if self.get(f"{each}.enabled")), None)

    @property
    def autocast_dtype(self) -> str | None:
        """The dtype of torch.autocast around the model; None: without."""
        if not self.get("torch_autocast.enabled"):
            return None
        return _dtype("torch_autocast.dtype", self.get("torch_autocast.dtype", "bfloat16"))

    @property
    def gradient_clipping(self) -> float:
        """The norm that gradients may have; 0: any."""
        return float(self.get("gradient_clipping", 1.0))

    @property
    def loss_scale(self) -> LossScale | None:
        """How losses are scaled; None: not at all."""
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
        """Whether units compute everything once more in the backward pass."""
        names = ("partition_activations", "cpu_checkpointing", "number_checkpoints")
        return any(self.get(f"activation_checkpointing.{name}") for name in names)

    @property
    def is_fully_sharded(self) -> bool:
        """Whether FullyShardedDataParallel wraps the model, and not DistributedDataParallel."""
        is_mixed = self.computed_dtype is not None
        return self.stage > 0 or is_mixed or self.activation_checkpointing

    def batch_sizes(self, world_size: int) -> BatchSizes:
        """Of so many ranks. ConfigError if they do not multiply, or none is given."""
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
        """How FullyShardedDataParallel shards the model as the stage says."""
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
        """How DistributedDataParallel averages gradients. ConfigError for what it cannot do: stages
        that shard, copies in other dtypes and activation checkpointing."""
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
        """By the name in the documentation, or the one in the code."""
        found = self.get(f"zero_optimization.stage3_{name}")
        return self.get(f"zero_optimization.{name}") if found is None else found

    def _offloads(self, what: str) -> bool:
        """Whether parameters ("param") or the optimizer's state ("optimizer") lie on the CPU."""
        older = {
            "optimizer": ["cpu_offload"],
            "param": ["cpu_offload_param", "cpu_offload_params"],
        }[what]
        if any(self.get(f"zero_optimization.{name}") for name in older):
            return True
        section = self.get(f"zero_optimization.offload_{what}")
        return section is not None and section.get("device", "none") != "none"

    def _check_together(self) -> None:
        """ConfigError that names all values that contradict each other, or make no sense."""
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
