"""Reads DeepSpeed's configurations and provides its API on this project's own wrappers.

    import torsh_runtime.integrations.deepspeed as deepspeed

    engine = deepspeed.initialize(model, "ds_config.json")

The library deepspeed is not used. docs/deepspeed.md has the table of keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torsh_runtime.errors import BackendUnavailable, ConfigError
from torsh_runtime.integrations.deepspeed.config import BatchSizes, DeepSpeedConfig, LossScale
from torsh_runtime.parallel.ddp.config import BucketConfig
from torsh_runtime.parallel.fsdp.config import FsdpConfig

if TYPE_CHECKING:
    from torsh_runtime.integrations.deepspeed.engine import DeepSpeedEngine

__all__ = [
    "BatchSizes",
    "DeepSpeedConfig",
    "DeepSpeedIntegration",
    "LossScale",
    "add_config_arguments",
    "init_distributed",
    "initialize",
]


class DeepSpeedIntegration:
    """Holds a configuration, and applies it to models."""

    def __init__(self, config: DeepSpeedConfig) -> None:
        if not isinstance(config, DeepSpeedConfig):
            raise ConfigError(
                f"config is a {type(config).__name__}: pass a DeepSpeedConfig, such as "
                f"DeepSpeedConfig.from_file('ds_config.json')"
            )
        self.config = config

    def initialize(self, model: Any, **named: Any) -> DeepSpeedEngine:
        """Call initialize(model, config, …) with this configuration."""
        return initialize(model, self.config, **named)

    def to_fsdp_config(self) -> FsdpConfig:
        """Return DeepSpeedConfig.to_fsdp_config()."""
        return self.config.to_fsdp_config()

    def to_ddp_config(self) -> BucketConfig:
        """Return DeepSpeedConfig.to_ddp_config()."""
        return self.config.to_ddp_config()


def initialize(
    model: Any = None,
    config: DeepSpeedConfig | Mapping[str, Any] | str | Path | None = None,
    *,
    args: Any = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    collate_fn: Any = None,
    auto: Mapping[str, Any] | None = None,
    dist_init_required: bool | None = None,
    config_params: Any = None,
    mpu: Any = None,
) -> DeepSpeedEngine:
    """Make an engine of a torch model. All ranks call this together.

    Without a process group it creates torch.distributed's, with the backend "torsh".

    config: a DeepSpeedConfig, a dict or a JSON file; None: args.deepspeed_config. config_params is
        its older name.
    optimizer: a torch optimizer that has not stepped, or a function of parameters that makes one;
        it replaces the configuration's. lr_scheduler: likewise, a scheduler or a function of the
        optimizer.
    model_parameters: the parameters to train, or groups of them; None: all that require gradients.
    training_data: a data set; engine.training_dataloader gives this rank its batches.
    auto: values that replace "auto", by dotted paths such as "optimizer.params.lr".
    dist_init_required: accepted for compatibility with DeepSpeed, and ignored.

    Raises ConfigError on all ranks, before anything is made, for a configuration that is not
    supported or differs between ranks; BackendUnavailable without torch.
    """
    del dist_init_required
    if mpu is not None:
        raise ConfigError("mpu: tensor parallelism is not combined with DeepSpeed's engine here")
    named = {
        "config": config,
        "config_params": config_params,
        "args.deepspeed_config": getattr(args, "deepspeed_config", None),
    }
    given = {name: source for name, source in named.items() if source is not None}
    if len(given) > 1:
        raise ConfigError(f"pass one DeepSpeed configuration, and not {' and '.join(given)}")
    return _making().make_engine(  # type: ignore[no-any-return]
        model,
        next(iter(given.values()), None),
        auto or {},
        optimizer,
        model_parameters,
        training_data,
        lr_scheduler,
        collate_fn,
    )


def init_distributed(dist_backend: str | None = None, **_: object) -> None:
    """Create torch.distributed's process group with the backend "torsh", unless there is one.

    Arguments are accepted for compatibility with DeepSpeed, and ignored.
    """
    del dist_backend
    _making().init_distributed()


def add_config_arguments(parser: Any) -> Any:
    """Add --deepspeed and --deepspeed_config to an argparse.ArgumentParser, and return it."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help="has no effect")
    group.add_argument("--deepspeed_config", default=None, help="a JSON file")
    return parser


def _making() -> Any:
    try:
        from torsh_runtime.integrations.deepspeed import making
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise BackendUnavailable(
            "DeepSpeed's engine",
            "Install torch: `pip install torch` (2.4 or later; 2.13 was tried).",
        ) from None
    return making


def __getattr__(name: str) -> Any:
    """Import `comm` or `DeepSpeedEngine` when it is first used.

    `comm` has torch.distributed's names, whose default group init_distributed() creates.
    `DeepSpeedEngine` is the class of initialize()'s result.
    """
    if name == "comm":
        _making()
        return import_module(f"{__name__}.comm")
    if name == "DeepSpeedEngine":
        return _making().DeepSpeedEngine
    raise AttributeError(
        f"torsh_runtime.integrations.deepspeed has no {name!r}: docs/deepspeed.md says what there "
        f"is of DeepSpeed"
    )
