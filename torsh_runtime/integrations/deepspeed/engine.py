"""Defines DeepSpeedEngine, which trains a model with DeepSpeed's interface.

It holds the model, its optimizer, its schedule and its loss scale.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import ConfigError
from torsh_runtime.integrations.deepspeed import saving
from torsh_runtime.integrations.deepspeed.config import DeepSpeedConfig
from torsh_runtime.integrations.deepspeed.scaling import LossScaler
from torsh_runtime.parallel.clipping import clip_grad_norm_


@dataclass(frozen=True, slots=True)
class Parts:
    """Holds the objects that initialize() made."""

    wrapper: Any
    """The model in DistributedDataParallel or FullyShardedDataParallel."""
    optimizer: Any
    lr_scheduler: Any
    training_dataloader: Any
    scaler: LossScaler | None


class DeepSpeedEngine:
    """Trains a model with three calls for each batch:

        loss = engine(inputs)
        engine.backward(loss)
        engine.step()

    step() steps the optimizer once in gradient_accumulation_steps. All ranks make the same calls.
    Attributes that the engine lacks are the model's, such as parameters() and state_dict(). The
    engine can be unpacked like the result of deepspeed.initialize(): engine, optimizer, dataloader,
    schedule.
    """

    def __init__(self, config: DeepSpeedConfig, group: ProcessGroup, parts: Parts) -> None:
        self.config = config
        self.process_group = group
        self.wrapper, self.optimizer = parts.wrapper, parts.optimizer
        self.lr_scheduler, self.scaler = parts.lr_scheduler, parts.scaler
        self.training_dataloader = parts.training_dataloader
        self.batch_sizes = config.batch_sizes(group.world_size)
        self.global_rank, self.world_size = group.rank, group.world_size
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.global_steps = self.micro_steps = self.global_samples = self.skipped_steps = 0
        self._boundary: bool | None = None
        self._is_averaged = self._is_scaled = False
        self._norm: float | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the engine, its optimizer, the loader of training_data and the schedule."""
        yield from (self, self.optimizer, self.training_dataloader, self.lr_scheduler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "wrapper":
            raise AttributeError(name)
        return getattr(self.wrapper, name)

    @property
    def module(self) -> Any:
        """Return the unwrapped model."""
        return self.wrapper.module

    @property
    def device(self) -> torch.device:
        """Return the device of the model's parameters."""
        found: torch.device = next(self.wrapper.parameters()).device
        return found

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Call the model."""
        is_last = self.is_gradient_accumulation_boundary()
        if torch.is_grad_enabled():
            self._is_averaged = is_last
        with self._accumulating(), self._autocast():
            return self.wrapper(*inputs, **named)

    forward = __call__

    def backward(self, loss: Any, retain_graph: bool = False, scale_wrt_gas: bool = True) -> Any:
        """Accumulate the gradients of a loss, and return the loss.

        The loss is divided by gradient_accumulation_steps unless scale_wrt_gas is false. The last
        pass of a step averages the gradients over ranks. The returned loss is divided likewise.
        """
        scaled = self.scale(loss) if scale_wrt_gas else self._scaled(loss)
        with self._accumulating():
            scaled.backward(retain_graph=retain_graph)
        return loss / self.batch_sizes.accumulation if scale_wrt_gas else loss

    def scale(self, loss: Any) -> Any:
        """Return a loss for `engine.scale(loss).backward()`, which does what engine.backward(loss)
        does.

        The loss is divided by gradient_accumulation_steps and, with float16, multiplied by the
        scale.
        """
        return self._scaled(_checked(loss) / self.batch_sizes.accumulation)

    def _scaled(self, loss: Any) -> Any:
        self._is_scaled = True
        return _checked(loss) if self.scaler is None else self.scaler.scale(_checked(loss).float())

    def step(self) -> None:
        """Step the optimizer and the schedule if this ends an accumulation, and drop the gradients.

        With float16 a step whose gradients are not finite is skipped on all ranks. Raises
        ConfigError without an optimizer, or if the loss was neither divided nor scaled as needed.
        """
        if self.optimizer is None:
            raise ConfigError(
                "step() needs an optimizer: name one in the DeepSpeed configuration, or pass it to "
                "initialize()"
            )
        if not self._is_scaled and (self.scaler is not None or self.batch_sizes.accumulation > 1):
            raise ConfigError(
                "step() follows a loss.backward() of a loss that was neither divided by "
                "gradient_accumulation_steps nor scaled: call engine.backward(loss), or "
                "engine.scale(loss).backward()"
            )
        if self.is_gradient_accumulation_boundary():
            self._step_optimizer()
        self._is_scaled = False
        self.micro_steps += 1

    def _step_optimizer(self) -> None:
        if not self._is_averaged:  # the model was called directly
            self.wrapper.reduce_gradients()
        has_stepped = self._apply()
        self.wrapper.zero_grad()
        self._is_averaged = False
        if not has_stepped:
            self.skipped_steps += 1
        elif self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.global_steps += 1
        self.global_samples += self.batch_sizes.train
        every = self.config.get("steps_per_print")
        if every and self.global_rank == 0 and self.global_steps % every == 0:
            sys.stdout.write(
                f"step={self.global_steps}, skipped={self.skipped_steps}, lr={self.get_lr()}, "
                f"mom={self.get_mom()}\n"
            )

    def _apply(self) -> bool:
        """Clip the gradients, and step the optimizer unless they overflowed; return whether it
        stepped.
        """
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        if self.config.gradient_clipping:
            self._norm = clip_grad_norm_(self.wrapper, self.config.gradient_clipping)
        if self.scaler is None:
            self.optimizer.step()
            return True
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return not self.scaler.has_overflown

    def _accumulating(self) -> AbstractContextManager[None]:
        """Return a context in which gradients are accumulated without being averaged.

        Stages 2 and 3 average in each backward pass, so that no rank has whole gradients.
        """
        if self.is_gradient_accumulation_boundary() or self.config.stage >= 2:
            return nullcontext()
        found: AbstractContextManager[None] = self.wrapper.no_sync()
        return found

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = self.config.autocast_dtype
        if dtype is None:
            return nullcontext()
        found: AbstractContextManager[Any] = torch.autocast(
            self.device.type, dtype=getattr(torch, dtype)
        )
        return found

    def is_gradient_accumulation_boundary(self) -> bool:
        """Return whether the next step() steps the optimizer."""
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.batch_sizes.accumulation == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Set whether the next step() steps the optimizer, in place of counting calls of step()."""
        self._boundary = is_boundary

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients without averaging in this block, in which step() is not called."""
        before, self._boundary = self._boundary, False
        try:
            yield
        finally:
            self._boundary = before

    def train(self, mode: bool = True) -> DeepSpeedEngine:
        """Set the model's training mode, and return the engine."""
        self.wrapper.train(mode)
        return self

    def eval(self) -> DeepSpeedEngine:
        """Set the model's evaluation mode, and return the engine."""
        return self.train(False)

    def train_batch_size(self) -> int:
        """Return the number of samples of a step over all ranks."""
        return self.batch_sizes.train

    def train_micro_batch_size_per_gpu(self) -> int:
        """Return the number of samples of a backward pass on a rank."""
        return self.batch_sizes.micro

    def gradient_accumulation_steps(self) -> int:
        """Return the number of backward passes in each step."""
        return self.batch_sizes.accumulation

    def zero_optimization_stage(self) -> int:
        """Return the stage of ZeRO."""
        return self.config.stage

    def zero_optimization(self) -> bool:
        """Return whether the stage of ZeRO is above 0."""
        return self.config.stage > 0

    def fp16_enabled(self) -> bool:
        """Return whether passes compute in float16."""
        return self.config.computed_dtype == "float16"

    def bfloat16_enabled(self) -> bool:
        """Return whether passes compute in bfloat16."""
        return self.config.computed_dtype == "bfloat16"

    def gradient_clipping(self) -> float:
        """Return the largest norm that the gradient may have; 0 means any."""
        return self.config.gradient_clipping

    def get_lr(self) -> list[float]:
        """Return the learning rate of each parameter group of the optimizer."""
        return [] if self.optimizer is None else [g["lr"] for g in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Return the betas or the momentum of each parameter group of the optimizer."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [group.get("betas", group.get("momentum", 0.0)) for group in groups]

    def get_global_grad_norm(self) -> float | None:
        """Return the norm of the last step's gradient before clipping; None without clipping."""
        return self._norm

    def loss_scale(self) -> float:
        """Return the factor by which losses are multiplied; 1 without float16."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    @property
    def cur_scale(self) -> float:
        """Return loss_scale()."""
        return self.loss_scale()

    def save_checkpoint(
        self,
        save_dir: str | Path,
        tag: object = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
    ) -> bool:
        """Save the model, optimizer, schedule, scale, counters and `client_state`. All ranks call
        it.

        client_state: numbers, strings, arrays, and lists, tuples and dicts of them.
        tag: the checkpoint's name in save_dir, which all ranks can access; None: "global_step" and
            the number of the step. Saving under a tag again replaces the older checkpoint.
        save_latest: have load_checkpoint() find this checkpoint without a tag.

        Returns True. Raises CheckpointError on all ranks if one of them cannot write.
        """
        saving.save(self, Path(save_dir), tag, client_state or {}, save_latest)
        return True

    def load_checkpoint(
        self,
        load_dir: str | Path,
        tag: object = None,
        *,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[str | None, dict[str, Any]]:
        """Load a checkpoint of save_checkpoint(), on any number of ranks with any stage.

        Returns its path and client_state; (None, {}) if no tag is given and there is no checkpoint.
        All ranks call it. Raises CheckpointError on all ranks for a tag that does not exist or does
        not fit.
        """
        leave_out = {
            "optimizer": load_module_only or not load_optimizer_states,
            "lr_scheduler": load_module_only or not load_lr_scheduler_states,
            "scaler": load_module_only or not load_optimizer_states,
            "counters": load_module_only,
        }
        left_out = {name for name, is_out in leave_out.items() if is_out}
        return saving.load(self, Path(load_dir), tag, left_out)

    def save_16bit_model(
        self, save_dir: str | Path, save_filename: str = "pytorch_model.bin"
    ) -> bool:
        """Have rank 0 write the model's whole state_dict() with torch.save. All ranks call it.

        Its values are float16 or bfloat16 if passes compute in that dtype. Returns True.
        """
        saving.save_model(self, Path(save_dir), save_filename)
        return True

    save_fp16_model = save_16bit_model

    def state_dict(self) -> dict[str, Any]:
        """Return the model's whole state under the unwrapped model's names. All ranks call it."""
        found: dict[str, Any] = self._whole().state_dict()
        return found

    def destroy(self) -> None:
        """Drop the gradients. The model's memory is freed with the engine."""
        self.wrapper.zero_grad()

    module_state_dict = state_dict

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load the result of state_dict(). All ranks call it."""
        return self._whole().load_state_dict(state_dict, strict=strict)

    load_module_state_dict = load_state_dict

    def _whole(self) -> Any:
        """Return the module that reads and sets whole parameters by the unwrapped model's names."""
        return self.wrapper if self.config.is_fully_sharded else self.module


def _checked(loss: Any) -> torch.Tensor:
    """Return the loss if it is a tensor of one number; raise ConfigError otherwise."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss
    is_tensor = isinstance(loss, torch.Tensor)
    told = f"one of shape {tuple(loss.shape)}" if is_tensor else f"a {type(loss).__name__}"
    raise ConfigError(f"backward() takes a loss, one number in a tensor, and not {told}")
