"""Defines save_pretrained() for models that are spread over ranks."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torsh_runtime.arrays.raw import dtype_name
from torsh_runtime.checkpoint.pretrained.conventions import (
    as_written,
    check_model,
    model_itself,
    names_to_save,
)
from torsh_runtime.checkpoint.pretrained.lazy import Lazy
from torsh_runtime.checkpoint.shards import Kind, ShardedFiles, size_of
from torsh_runtime.checkpoint.whole import WholeTensors, model_in, state_of
from torsh_runtime.errors import CheckpointError, ConfigError
from torsh_runtime.mesh.mesh import DeviceMesh
from torsh_runtime.parallel.parts_of_state import parts_are_meant
from torsh_runtime.parallel.state.models import unwrapped

_CALL = "save_pretrained()"
_DEFAULT_SIZE = "50GB"
_IGNORED = ("is_main_process", "save_peft_format", "token")
"""Options of transformers' save_pretrained() that have no effect here."""
_AS_GIVEN = {"push_to_hub": False, "distributed_checkpoint": False, "safe_serialization": True}
"""Options that support a single value here."""


def save_pretrained(
    model: Any,
    directory: str | Path,
    mesh: DeviceMesh | None = None,
    *,
    max_shard_size: int | str = _DEFAULT_SIZE,
    variant: str | None = None,
    save_original_format: bool = True,
    process_group: Any = None,
) -> None:
    """Write a model of transformers that is spread over ranks, in transformers' own format.

    The files are those that the whole model's save_pretrained() would write, so that
    from_pretrained() reads them anywhere. All ranks call this. Rank 0 writes the configurations and
    then the tensors one by one, each collected from the ranks that have it; it needs memory for one
    more tensor, the others for none. Existing files are replaced once everything is written.

    Args:
        model: A model cut by parallelize(), in FullyShardedDataParallel or DistributedDataParallel,
            or several of these; or a PipelineParallel of it.
        directory: The directory of the files.
        mesh: As whole_state_dict().
        max_shard_size: As in transformers.
        variant: As in transformers.
        save_original_format: As in transformers.
        process_group: As whole_state_dict().

    Raises:
        ConfigError: On all ranks for models that cannot be written this way, and if other ranks
            call something else.
        CheckpointError: On all ranks if rank 0 cannot write.

    Example:
        ```python
        model = tr.from_pretrained(AutoModelForCausalLM, "checkpoints/llama", mesh)
        train(model)
        tr.save_pretrained(model, "checkpoints/tuned", mesh)
        ```
    """
    model = model_in(model)
    whole = WholeTensors(state_of(model, mesh), "model", process_group, _CALL)
    whole.check_tensors_only()
    save = None
    with _told_to_all(whole) as told:
        if whole.ranks.rank == 0:
            core = model_itself(unwrapped(model))
            check_model(core)
            save = _Save(core, whole, size_of(max_shard_size), variant, save_original_format)
            told["steps"] = [step.sources for step in save.steps]
    with _told_to_all(whole) as end:
        if save is None:
            for names in told["steps"]:
                for name in names:
                    whole.collect(name)
        else:
            save.write(Path(directory))
    del end


def save_pretrained_of(model: Any, directory: str | Path, *given: Any, **named: Any) -> None:
    """Carry out model.save_pretrained() of transformers for a model that is cut.

    Raises ConfigError for options that are not supported for such a model.
    """
    names = ("is_main_process", "state_dict", "push_to_hub", "max_shard_size", "variant")
    named |= dict(zip(names, given, strict=False))
    if named.get("state_dict") is not None:
        if named.get("is_main_process", True):
            type(model).save_pretrained(model, directory, **named)
        return
    named.pop("state_dict", None)
    for name, value in _AS_GIVEN.items():
        if named.pop(name, value) != value:
            raise ConfigError(
                f"{_CALL} of a model of which ranks have parts takes {name}={value} only: use "
                f"rank 0's files afterwards"
            )
    kept = {key: each for key, each in named.items() if key not in _IGNORED}
    known = {"max_shard_size", "variant", "save_original_format"}
    if kept.keys() - known:
        raise ConfigError(f"{_CALL} of a cut model knows no {', '.join(kept.keys() - known)}")
    save_pretrained(model, directory, **kept)


@contextmanager
def _told_to_all(whole: WholeTensors) -> Iterator[dict[str, Any]]:
    """Raise errors of rank 0 in the block on all ranks; otherwise share the dict that it filled."""
    told: dict[str, Any] = {}
    error: Exception | None = None
    try:
        yield told
    except Exception as reason:  # the model's own code may raise anything
        error = reason
    said = {} if error is None else {"error": f"{type(error).__name__}: {error}"}
    kind = CheckpointError if isinstance(error, OSError | CheckpointError) else ConfigError
    said |= {"kind": kind.__name__} if error is not None else {}
    first = json.loads(whole.ranks.texts(json.dumps(told | said))[0])
    if "error" in first:
        raised = CheckpointError if first["kind"] == "CheckpointError" else ConfigError
        raise raised(f"{_CALL}: rank 0: {first['error']}") from error
    if error is not None:
        raise error
    told |= first


@dataclass
class _Step:
    """Groups tensors of the model that are converted together, and the tensors written for them."""

    sources: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)


class _Save:
    """Performs rank 0's part of the save."""

    def __init__(
        self, model: Any, whole: WholeTensors, largest: int, variant: str | None, converts: bool
    ) -> None:
        self._model, self._whole, self._converts = model, whole, converts
        with parts_are_meant():
            own = [*model.state_dict()]
        known = {*whole.held, *whole.aliases}
        names = [name for name in own if name in known]
        names += [name for name in whole.held if name not in {*own}]
        self._names = names_to_save(model, names, whole.aliases)
        lazy: dict[str, Any] = {name: self._lazy(name) for name in self._names}
        written = self._converted(lazy)
        self.steps = _steps(written)
        kinds = {n: Kind(dtype_name(each), tuple(each.shape)) for n, each in written.items()}
        self._files = ShardedFiles(kinds, largest, variant)

    def _lazy(self, name: str) -> Lazy:
        held = self._whole.held[self._name(name)]
        return Lazy.of(held.shape, getattr(torch, held.dtype), name, None)

    def _name(self, name: str) -> str:
        return self._whole.aliases.get(name, name)

    def _converted(self, tensors: dict[str, Any]) -> dict[str, Any]:
        return as_written(self._model, tensors) if self._converts else tensors

    def write(self, directory: Path) -> None:
        """Collect and write everything. Errors are raised after all ranks have sent all tensors."""
        error: Exception | None = None
        folder = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".tmp-", dir=directory))
            self._begin(folder)
        except Exception as reason:
            error = reason
        for step in self.steps:
            given = {name: self._whole.collect(self._name(name)) for name in step.sources}
            try:
                if error is None:
                    self._write(step, given)
            except Exception as reason:
                error = reason
        try:
            if error is not None:
                raise error
            assert folder is not None
            self._files.finish(folder, self._whole.num_parameters)
            self._replace(folder, directory)
        finally:
            self._files.close()
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, folder: Path) -> None:
        """Write everything but tensors, as transformers does."""
        type(self._model).save_pretrained(self._model, folder, state_dict={})
        for each in folder.glob("*.safetensors*"):
            each.unlink()
        self._files.create(folder)

    def _write(self, step: _Step, given: dict[str, Any]) -> None:
        written = self._converted(given)
        if written.keys() != {*step.targets}:
            raise ConfigError(
                f"{', '.join(given)} are converted differently alone than together with all others"
            )
        for name in [*written]:
            self._files.write(name, written.pop(name))

    def _replace(self, folder: Path, directory: Path) -> None:
        """Replace existing files by the new ones; the index and the configuration come last."""
        stale = self._files.stale(directory)
        last = (self._files.index, "config.json")
        for each in sorted(folder.iterdir(), key=lambda path: path.name in last):
            each.replace(directory / each.name)
        for each in stale:
            with suppress(FileNotFoundError):
                each.unlink()


def _steps(written: dict[str, Any]) -> list[_Step]:
    """Return the groups of tensors that are converted together, in the order of what is written."""
    of: dict[str, _Step] = {}
    steps: list[_Step] = []
    for name, each in written.items():
        known = _distinct(of[source] for source in each.sources if source in of)
        step = known[0] if known else _Step()
        if not known:
            steps.append(step)
        for other in known[1:]:
            step.targets += other.targets
            step.sources += other.sources
            steps.remove(other)
        step.sources += sorted(source for source in each.sources if source not in of)
        step.targets.append(name)
        of |= dict.fromkeys(step.sources, step)
    return steps


def _distinct(steps: Iterable[_Step]) -> list[_Step]:
    return [*{id(each): each for each in steps}.values()]
