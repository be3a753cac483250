"""Defines Checkpointer, which saves a training run's state and loads it again."""

from __future__ import annotations

import json
import operator
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torsh_runtime.checkpoint.directory import checkpoints
from torsh_runtime.checkpoint.pieces import DamagedCheckpoint
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.reader import CheckpointReader
from torsh_runtime.checkpoint.retention import Retention
from torsh_runtime.checkpoint.saving import Save, Saver, outcome
from torsh_runtime.comm.agreement import Attempt
from torsh_runtime.errors import CheckpointError, ConfigError, TorshError
from torsh_runtime.monitoring.marks import section
from torsh_runtime.parallel.state import Restoration, check_state, settle
from torsh_runtime.transitions import Machine


@dataclass(frozen=True)
class Loaded:
    """Holds the result of Checkpointer.load().

    Example:
        ```python
        loaded = checkpointer.load(state)
        first_step = loaded.step if loaded else 0
        ```
    """

    step: int
    """The step of the checkpoint."""
    path: Path
    """The checkpoint's directory."""
    values: dict[str, Any]
    """Plain values of the checkpoint, by name: those that no object with load_state_dict() took."""
    passed_over: tuple[str, ...]
    """For each newer checkpoint that was skipped, the reason."""
    missing_keys: tuple[str, ...] = ()
    """Names of the models' tensors on any rank that the checkpoint lacks, with strict=False."""
    unexpected_keys: tuple[str, ...] = ()
    """Names of the models in the checkpoint that no rank's model has, with strict=False."""


class Checkpointer:
    """Saves and loads checkpoints of a training run in a directory that all ranks can access.

    Each rank writes the tensors it has; a tensor that several ranks have is written by one of them.
    A checkpoint can be loaded on any number of ranks, by models wrapped in any way or not at all.
    All ranks make the same calls in the same order. At the end of a `with` block it waits for the
    last save.

    Example:
        ```python
        state = {"model": model, "optimizer": optimizer, "sampler": sampler}
        with tr.checkpoint.Checkpointer("checkpoints", keep_last=3) as checkpointer:
            loaded = checkpointer.load(state)
            for step in range(loaded.step if loaded else 0, steps):
                train(step)
                checkpointer.save(step + 1, state, async_op=True)
        ```
    """

    def __init__(
        self, directory: str | Path, *, keep_last: int | None = None, process_group: Any = None
    ) -> None:
        """Prepare to save to and load from `directory`. Nothing is written yet.

        Args:
            directory: The directory, created by the first save; only one job at a time may save to
                it.
            keep_last: The number of steps whose checkpoints are kept, counting the ones saved last
                that are complete. None keeps all.
            process_group: The ranks that save together. None is the default group, or this process
                alone if there is no default group.

        Raises:
            ConfigError: If `keep_last` is below 1.
        """
        if keep_last is not None and keep_last < 1:
            raise ConfigError(f"keep_last must be 1 or more, or None to keep all, not {keep_last}")
        self._directory = Path(directory)
        self._retention = Retention(keep_last)
        self._ranks = Ranks.of(process_group)
        self._apart: Ranks | None = None
        self._saver = Saver(self._ranks)
        self._writing: _Background | None = None
        self._seen = Machine("checkpoint", "idle")
        self._writer_seen = Machine("checkpoint_writer", "idle")

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()

    def save(self, step: int, state: Mapping[str, Any], async_op: bool = False) -> None:
        """Save the state after `step` steps.

        Old checkpoints are always removed in the background.

        Args:
            step: The number of steps, 0 or more.
            state: Names of models, optimizers, other objects with state_dict() and
                load_state_dict(), and plain values: numbers, strings, arrays, and lists, tuples and
                dicts of them. Plain values are taken from rank 0. An object with state_dict() must
                have the same state on all ranks, unless it is wrapped in PerRank or is a loader of
                torchdata. If parameters have layouts on a mesh, put that DeviceMesh into `state`
                too, under any name; the checkpoint can be loaded on any other mesh.
            async_op: Whether to return once the state is copied in memory; wait() waits for the
                disk. An earlier save that is still being written is waited for first.

        Raises:
            CheckpointError: On all ranks if one of them cannot save or write its state; nothing of
                this checkpoint remains then.
            ConfigError: If `step` is no such number.
            CommError: If communication fails.

        Example:
            ```python
            checkpointer.save(step, {"model": model, "optimizer": optimizer}, async_op=True)
            ```
        """
        number = _step(step)
        self.wait()
        with section("checkpoint.save"), self._seen.during("saving", "saved", f"step {number}"):
            self._save(number, state, async_op)

    def _save(self, number: int, state: Mapping[str, Any], async_op: bool) -> None:
        save = self._saver.begin(number, state, async_op)
        if async_op and self._apart is None:
            self._apart = self._ranks.apart()
        if not async_op:
            save.write(self._directory, self._ranks, self._retention)
        self._writing = _Background(partial(self._finish, save, async_op))

    def _finish(self, save: Save, is_to_be_written: bool) -> None:
        if is_to_be_written and self._apart is not None:
            writing = self._writer_seen.during("writing", "written", f"step {save.step}")
            with section("checkpoint.write"), writing:
                save.write(self._directory, self._apart, self._retention)
        for path in save.retired:
            shutil.rmtree(path, ignore_errors=True)
        left = [f"{path} cannot be removed" for path in save.retired if path.exists()]
        for why in [*map(str, save.refused), *left]:
            warnings.warn(
                f"an old checkpoint remains and takes up disk space: {why}. This user "
                f"({os.geteuid()}) may not remove what other users own: give each a directory",
                RuntimeWarning,
                stacklevel=2,
            )

    def wait(self) -> None:
        """Wait until the last save is on the disk.

        Raises:
            CheckpointError: As save() would have raised.
            CommError: As save() would have raised.

        Example:
            ```python
            checkpointer.save(step, state, async_op=True)
            checkpointer.wait()
            ```
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            with section("checkpoint.wait"):
                writing.wait()

    def load(
        self,
        state: Mapping[str, Any] | None = None,
        step: int | None = None,
        *,
        strict: bool = True,
        names: Mapping[str, str] | None = None,
    ) -> Loaded | None:
        """Load the last complete checkpoint into the objects of `state`, in place.

        Args:
            state: The objects, by their names in the checkpoint, as save() takes them.
            step: The step to load. None takes the last save, even if the run had gone back to an
                earlier step by then. If a checkpoint is damaged, a RuntimeWarning reports it and
                the one saved before it is loaded.
            strict: Whether the checkpoint must have all that models and optimizers have. Otherwise
                the rest stays as it is, and parameters that were not saved with an optimizer begin
                anew in it. What a model lacks is never an error. Shapes must be the same.
            names: Beginnings of names in models, as "model/body", and what they are in the
                checkpoint, as "model/encoder", for layers that have moved.

        Returns:
            The step, path and plain values, and the names that did not fit; or None if there is no
            checkpoint at all.

        Raises:
            CheckpointError: On all ranks if all checkpoints are damaged, if there is none of
                `step`, or if tensors differ in name, shape or dtype from those of `state`, whose
                contents are then undefined; and without a checkpoint if `state` holds a model that
                save() could not save.
            ConfigError: If `step` is no number of steps, or if `names` has a key that begins with
                the name of no model in `state`.
            CommError: If communication fails.

        Example:
            ```python
            loaded = checkpointer.load({"model": model, "optimizer": optimizer})
            first_step = loaded.step if loaded else 0
            ```
        """
        step = None if step is None else _step(step)
        self.wait()
        settle((state or {}).values())
        passed_over: list[str] = []
        for number, path in self._candidates(step):
            loading = self._seen.during("loading", "idle", str(path))
            with section("checkpoint.load"), loading:
                outcome = self._try(path, dict(state or {}), strict, names or {})
            if not isinstance(outcome, str):
                return Loaded(number, path, outcome.values, tuple(passed_over), *outcome.misfits)
            passed_over.append(outcome)
            if self._ranks.rank == 0:
                warnings.warn(f"passed over a checkpoint: {outcome}", RuntimeWarning, stacklevel=2)
        if not passed_over and step is None:
            self._check(dict(state or {}))
            return None
        raise CheckpointError(
            f"{self._directory} has no checkpoint {'' if step is None else f'of step {step} '}that "
            f"can be loaded. {' '.join(passed_over)}".rstrip()
        )

    def steps(self) -> list[int]:
        """Return the steps that have checkpoints, the most recently saved first.

        Example:
            ```python
            checkpointer.steps()  # [300, 200, 100]
            ```
        """
        return list(dict.fromkeys(step for step, _ in checkpoints(self._directory)))

    def _candidates(self, step: int | None) -> list[tuple[int, Path]]:
        """Return step and path of each checkpoint as rank 0 lists them, on all ranks."""
        own = outcome(self._listed, self._directory) if self._ranks.rank == 0 else {}
        told = json.loads(self._ranks.texts(json.dumps(own))[0])
        if "error" in told:
            raise CheckpointError(f"rank 0 cannot list the checkpoints:  {told['error']}")
        found = [(each, self._directory / name) for each, name in told["listed"]]
        return [each for each in found if step in (None, each[0])]

    def _listed(self) -> dict[str, Any]:
        return {"listed": [[step, path.name] for step, path in checkpoints(self._directory)]}

    def _check(self, state: dict[str, Any]) -> None:
        with Attempt() as attempt:  # the program's own models may raise anything
            check_state(state, self._ranks)
        self._ranks.agree("could not save", attempt.error)

    def _try(
        self, path: Path, state: dict[str, Any], strict: bool, names: Mapping[str, str]
    ) -> _Restored | str:
        """Return what was loaded, or the reason why all ranks skip this checkpoint."""
        found = _Restored({})
        misfit: Exception | None = None
        damage = ""
        try:
            with CheckpointReader(path) as reader:
                plan = Restoration(state, reader, self._ranks, strict, names)
                for name, target in plan.reads:
                    reader.read(name, target)
                found = _Restored(plan.finish(), () if strict else plan.misfits())
        except DamagedCheckpoint as error:
            damage = str(error)
        except Exception as error:  # from any load_state_dict(): report it to all ranks
            misfit = error
        own = [damage, "" if misfit is None else str(misfit), found.misfits]
        outcomes = [json.loads(each) for each in self._ranks.texts(json.dumps(own))]
        if misfit is not None:
            raise misfit if isinstance(misfit, TorshError) else _misfit(path, misfit) from misfit
        for rank, (_, other, _) in enumerate(outcomes):
            if other:
                raise CheckpointError(f"rank {rank} cannot load {path}: {other}")
        damages = [f"rank {rank}: {each}." for rank, (each, *_) in enumerate(outcomes) if each]
        misfits = _of_all([each for *_, each in outcomes if each])
        return damages[0] if damages else _Restored(found.values, misfits)


class _Restored(NamedTuple):
    """Holds what was loaded."""

    values: dict[str, Any]
    misfits: Sequence[tuple[str, ...]] = ()
    """Names of models that were missing, and those that were unexpected."""


def _of_all(misfits: Sequence[Sequence[Sequence[str]]]) -> tuple[tuple[str, ...], ...]:
    """Return the names that any rank misses, and those that no rank knows."""
    if not misfits:
        return ()
    missing = dict.fromkeys(name for each, _ in misfits for name in each)
    _, unexpected = misfits[0]
    known = [set(each) for _, each in misfits]
    return tuple(missing), tuple(name for name in unexpected if all(name in k for k in known))


class _Background:
    """Runs a call in a thread of its own."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="torsh checkpoint")
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self._error = error


def _step(step: Any) -> int:
    """Return `step` as an int; numpy's and torch's integers are accepted. Raises ConfigError
    otherwise."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ConfigError(f"step must be an integer of 0 or more, not {step!r}")
    return number


def _misfit(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} does not fit: {type(error).__name__}: {error}")
