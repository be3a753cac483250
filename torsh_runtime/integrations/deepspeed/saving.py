"""Saves and loads an engine's checkpoints: a directory of tags, each written by a Checkpointer."""

from __future__ import annotations

import warnings
from collections.abc import Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torsh_runtime.checkpoint import Checkpointer
from torsh_runtime.comm.agreement import agree, by_rank, texts_of_all
from torsh_runtime.errors import CheckpointError, ConfigError, disagreement

if TYPE_CHECKING:
    from torsh_runtime.integrations.deepspeed.engine import DeepSpeedEngine

LATEST = "latest"
"""The file with the tag that was saved last."""
_COUNTERS = ("global_steps", "micro_steps", "global_samples", "skipped_steps")


def save(
    engine: DeepSpeedEngine,
    directory: Path,
    tag: object,
    client_state: dict[str, Any],
    is_latest: bool,
) -> None:
    """Carry out DeepSpeedEngine.save_checkpoint()."""
    name = _agreed_tag(engine, f"global_step{engine.global_steps}" if tag is None else str(tag))
    with Checkpointer(directory / name, keep_last=1, process_group=engine.process_group) as kept:
        kept.save(engine.global_steps, {**_state(engine), "client_state": client_state})
    if is_latest:
        _note(engine, directory, name)


def load(
    engine: DeepSpeedEngine, directory: Path, tag: object, left_out: Set[str]
) -> tuple[str | None, dict[str, Any]]:
    """Carry out DeepSpeedEngine.load_checkpoint(), without the parts in `left_out`."""
    name = str(tag) if tag is not None else _noted(engine, directory)
    if not name:
        return None, {}
    state = {key: value for key, value in _state(engine).items() if key not in left_out}
    counters = state.pop("counters", None)
    checkpointer = Checkpointer(directory / name, process_group=engine.process_group)
    found = checkpointer.load(state)
    if found is None:
        raise CheckpointError(f"{directory / name} has no checkpoint: is the tag {name!r} right?")
    if counters is not None:
        for each in _COUNTERS:
            setattr(engine, each, int(found.values["counters"][each]))
    return str(directory / name), found.values.get("client_state", {})


def save_model(engine: DeepSpeedEngine, directory: Path, name: str) -> None:
    """Carry out DeepSpeedEngine.save_16bit_model()."""
    state = engine.state_dict()
    dtype = engine.config.computed_dtype
    problem = ""
    if engine.global_rank == 0:
        if dtype is not None:
            state = {
                key: value.to(getattr(torch, dtype)) if value.is_floating_point() else value
                for key, value in state.items()
            }
        try:
            directory.mkdir(parents=True, exist_ok=True)
            torch.save(state, directory / name)
        except (OSError, RuntimeError) as error:
            problem = f"{type(error).__name__}: {error}"
    _raise_of_first(engine, f"{directory / name} cannot be written", problem)


def _state(engine: DeepSpeedEngine) -> dict[str, Any]:
    found = {
        "model": engine.wrapper,
        "optimizer": engine.optimizer,
        "lr_scheduler": engine.lr_scheduler,
        "scaler": engine.scaler,
        "counters": {each: getattr(engine, each) for each in _COUNTERS},
    }
    return {name: thing for name, thing in found.items() if thing is not None}


def _agreed_tag(engine: DeepSpeedEngine, own: str) -> str:
    """Return rank 0's tag.

    Raises ConfigError for a tag that is no plain name and, on all ranks, for different tags if the
    configuration says so.
    """
    if not own or Path(own).name != own or own == LATEST:
        raise ConfigError(f"tag {own!r} must be a plain name, and not {LATEST!r}")
    tags = texts_of_all(engine.process_group, own)
    mode = str(engine.config.get("checkpoint.tag_validation", "warn")).lower()
    if len({*tags}) > 1 and mode != "ignore":
        told = f"save_checkpoint() has different tags: {by_rank(tags, engine.process_group)}"
        if mode == "fail":
            raise disagreement(told, dict(enumerate(tags)), engine.process_group.job_ranks)
        warnings.warn(f"{told}; rank 0's counts", RuntimeWarning, stacklevel=4)
    return tags[0]


def _note(engine: DeepSpeedEngine, directory: Path, tag: str) -> None:
    """Have rank 0 write the tag atomically."""
    problem = ""
    if engine.global_rank == 0:
        try:
            new = directory / f"{LATEST}.new"
            new.write_text(tag)
            new.replace(directory / LATEST)
        except OSError as error:
            problem = str(error)
    _raise_of_first(engine, f"{directory / LATEST} cannot be written", problem)


def _noted(engine: DeepSpeedEngine, directory: Path) -> str:
    """Return the tag that rank 0 reads; "" if there is none."""
    own = ""
    if engine.global_rank == 0 and (directory / LATEST).is_file():
        own = (directory / LATEST).read_text().strip()
    return texts_of_all(engine.process_group, own)[0]


def _raise_of_first(engine: DeepSpeedEngine, what: str, problem: str) -> None:
    """Raise CheckpointError on all ranks if rank 0 has a problem."""
    error = CheckpointError(f"{what}: {problem}") if problem else None
    agree(engine.process_group, "a checkpoint", problem=error, error=CheckpointError)
