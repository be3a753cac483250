"""Carries out initialize(): makes an engine of a model and a DeepSpeed configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torsh_runtime.comm.agreement import Attempt, agree
from torsh_runtime.comm.default import has_default_group
from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.deepspeed.config import DeepSpeedConfig
from torsh_runtime.integrations.deepspeed.engine import DeepSpeedEngine, Parts
from torsh_runtime.integrations.deepspeed.optimizers import check_optimizer, make_optimizer
from torsh_runtime.integrations.deepspeed.scaling import LossScaler
from torsh_runtime.integrations.deepspeed.schedules import check_schedule, make_schedule
from torsh_runtime.parallel.ddp import DistributedDataParallel
from torsh_runtime.parallel.fsdp import FullyShardedDataParallel
from torsh_runtime.parallel.groups import group_of
from torsh_runtime.parallel.sampler import DistributedSampler

Source = DeepSpeedConfig | Mapping[str, Any] | str | Path | None


def init_distributed() -> None:
    """Create torch.distributed's default group with the backend "torsh", unless a group exists."""
    if not has_default_group() and not dist.is_initialized():
        import torsh_runtime.integrations.torch  # noqa: F401  (it registers the backend)

        dist.init_process_group("torsh")


def make_engine(
    model: Any,
    source: Source,
    auto: Mapping[str, Any],
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    collate_fn: Any = None,
) -> DeepSpeedEngine:
    """Carry out initialize(). `source` is the configuration or its path."""
    init_distributed()
    group = group_of(None)
    config = _agreed_config(group, source, auto, model, optimizer, lr_scheduler)
    parameters = None if model_parameters is None else [*model_parameters]
    wrapper = _wrapped(config, model)
    made = _optimizer(config, wrapper, optimizer, parameters)
    rules = config.loss_scale
    parts = Parts(
        wrapper,
        made,
        _schedule(config, made, lr_scheduler),
        _loader(config, group, training_data, collate_fn),
        None if rules is None else LossScaler(rules, group),
    )
    return DeepSpeedEngine(config, group, parts)


def _agreed_config(
    group: ProcessGroup,
    source: Source,
    auto: Mapping[str, Any],
    model: Any,
    optimizer: Any,
    lr_scheduler: Any,
) -> DeepSpeedConfig:
    """Return the configuration, which is the same on all ranks.

    Raises ConfigError on all ranks if one cannot read it, or if the ranks differ.
    """
    config = DeepSpeedConfig({})
    with Attempt() as attempt:
        config = _read(source, auto)
        _check(config, group.world_size, model, optimizer, lr_scheduler)
    told = json.dumps(config.values, sort_keys=True)
    advice = "Give all ranks the same DeepSpeed configuration"
    agree(group, "initialize()", told, attempt.error, advice)
    return config


def _read(source: Source, auto: Mapping[str, Any]) -> DeepSpeedConfig:
    if isinstance(source, DeepSpeedConfig):
        if auto:
            raise ConfigError("pass auto= to DeepSpeedConfig, which is made already")
        return source
    if isinstance(source, str | Path):
        return DeepSpeedConfig.from_file(source, auto=auto)
    if source is None:
        raise ConfigError(
            "initialize() has no DeepSpeed configuration: pass config=, a dict or a file, or the "
            "program's args with --deepspeed_config"
        )
    return DeepSpeedConfig(source, auto)


def _check(
    config: DeepSpeedConfig, world_size: int, model: Any, optimizer: Any, lr_scheduler: Any
) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}, and must be a torch.nn.Module")
    config.batch_sizes(world_size)
    if optimizer is None and config.get("optimizer") is not None:
        check_optimizer(_type_of(config, "optimizer"), config.get("optimizer.params", {}))
    if lr_scheduler is None and config.get("scheduler") is not None:
        if optimizer is None and config.get("optimizer") is None:
            raise ConfigError("the DeepSpeed configuration has a scheduler, and no optimizer")
        check_schedule(_type_of(config, "scheduler"), config.get("scheduler.params", {}))


def _type_of(config: DeepSpeedConfig, section: str) -> str:
    found = config.get(f"{section}.type")
    if not found:
        raise ConfigError(f"the DeepSpeed configuration has a section {section} without a type")
    return str(found)


def _wrapped(config: DeepSpeedConfig, model: Any) -> Any:
    if not config.is_fully_sharded:
        return DistributedDataParallel(model, config=config.to_ddp_config())
    if config.computed_dtype is not None:
        model.float()  # the optimizer changes these parameters; passes use copies
    return FullyShardedDataParallel(model, config=config.to_fsdp_config())


def _optimizer(config: DeepSpeedConfig, wrapper: Any, given: Any, parameters: Any) -> Any:
    trained = [each for each in wrapper.parameters() if each.requires_grad]
    if given is None:
        if config.get("optimizer") is None:
            return None
        over = trained if parameters is None else parameters
        made = make_optimizer(
            _type_of(config, "optimizer"), config.get("optimizer.params", {}), over
        )
    else:
        made = given if isinstance(given, torch.optim.Optimizer) else given(parameters or trained)
    known = {id(each) for each in wrapper.parameters()}
    groups = made.param_groups
    if any(id(each) not in known for group in groups for each in group["params"]):
        raise ConfigError(
            "the optimizer has parameters that are none of the model's: make it of the model that "
            "is passed to initialize(), or pass a function that makes it, optimizer=lambda "
            "parameters: …"
        )
    if made.state:
        raise ConfigError(
            "the optimizer has stepped before initialize(): its state is of whole parameters. Make "
            "it anew, and load what was saved by load_checkpoint()"
        )
    return made


def _schedule(config: DeepSpeedConfig, optimizer: Any, given: Any) -> Any:
    if given is not None:
        return given if hasattr(given, "step") else given(optimizer)
    if config.get("scheduler") is None:
        return None
    params = dict(config.get("scheduler.params", {}))
    if config.is_auto("scheduler.params.warmup_max_lr"):
        params["warmup_max_lr"] = None  # the optimizer's
    return make_schedule(_type_of(config, "scheduler"), params, optimizer)


def _loader(config: DeepSpeedConfig, group: ProcessGroup, data: Any, collate_fn: Any) -> Any:
    if data is None:
        return None
    drops = bool(config.get("dataloader_drop_last", False))
    sampler = DistributedSampler(data, group.world_size, group.rank, drop_last=drops)
    return torch.utils.data.DataLoader(
        data,
        batch_size=config.batch_sizes(group.world_size).micro,
        sampler=sampler,
        collate_fn=collate_fn,
        drop_last=drops,
    )
