"""Checkpointer: saves a training's state and loads it again."""

from __future__ import annotations

import json
import operator
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torsh_runtime.checkpoint.directory import checkpoints
from torsh_runtime.checkpoint.pieces import DamagedCheckpoint
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.checkpoint.reader import CheckpointReader
from torsh_runtime.checkpoint.retention import Retention
from torsh_runtime.checkpoint.saving import Save, Saver, outcome
from torsh_runtime.comm.agreement import Attempt
from torsh_runtime.errors import CheckpointError, ConfigError, TorshError
from torsh_runtime.monitoring.marks import section
from torsh_runtime.parallel.state import check_state, restore
from torsh_runtime.transitions import Machine


@dataclass(frozen=True)
class Loaded:
    """What Checkpointer.load() found."""

    step: int
    path: Path
    values: dict[str, Any]
    """What no model, optimizer or other thing with a load_state_dict() has taken, by name."""
    passed_over: tuple[str, ...]
    """Why newer checkpoints were not loaded."""


class Checkpointer:
    """Checkpoints of a training, in a directory that all ranks see.

        checkpointer = tr.checkpoint.Checkpointer("checkpoints", keep_last=3)
        state = {"model": model, "optimizer": optimizer, "sampler": sampler}
        loaded = checkpointer.load(state)
        for step in range(loaded.step if loaded else 0, steps):
            ...
            if step % 100 == 99:
                checkpointer.save(step + 1, state, async_op=True)
        checkpointer.wait()

    Each rank writes what it has, and what several have is written by one of them. A checkpoint is
    loaded on any number of ranks, by models wrapped in any way or not at all.

    All ranks make the same calls in the same order.
    """

    def __init__(
        self, directory: str | Path, *, keep_last: int | None = None, process_group: Any = None
    ) -> None:
        """directory: made when it is first saved to; for one job at a time.
        keep_last: of how many steps to keep checkpoints, those that were saved last and are whole;
            None: of all.
        process_group: the ranks; None: the default group, or this process alone without one.
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
        """Save the state that follows `step` steps.

        state: by name, models, optimizers, whatever else has state_dict() and load_state_dict(),
            and values: numbers, texts, arrays, and lists, tuples and dicts of them. Of values rank
            0's count; what has a state_dict() must have the same on all ranks, unless it is in
            PerRank or a loader of torchdata's. Models whose parameters have layouts on a mesh take
            that DeviceMesh beside them, by any name; it is loaded on any other mesh.
        async_op: only the copying in memory is waited for; see wait(). A save before that is
            still being written is waited for first. Old checkpoints are removed in any case
            beside what follows.

        Raises CheckpointError on all ranks if one of them cannot keep what it has, or not
        write it, and then nothing of it stays; CommError as ProcessGroup.
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
                f"an old checkpoint stays, and takes its place on the disk: {why}. This user "
                f"({os.geteuid()}) may not remove what other users own: give each a directory",
                RuntimeWarning,
                stacklevel=2,
            )

    def wait(self) -> None:
        """Return when what was saved is on the disk. Raises what save() would have raised."""
        writing, self._writing = self._writing, None
        if writing is not None:
            with section("checkpoint.wait"):
                writing.wait()

    def load(
        self, state: Mapping[str, Any] | None = None, step: int | None = None
    ) -> Loaded | None:
        """Load the checkpoint that was saved last and is whole into what `state` names, in place;
        None if there is no checkpoint at all.

        step: of which step; None: that of the last save, also where a training has gone back behind
            steps that were saved. Where one is damaged, a RuntimeWarning says so and the one that
            was saved before is taken.

        Raises CheckpointError on all ranks if all are damaged, and if one does not fit: tensors of
        other names, shapes or dtypes. What the state then holds is undefined. So it does where
        there is none, for a model that save() could not save.
        """
        step = None if step is None else _step(step)
        self.wait()
        passed_over: list[str] = []
        for number, path in self._candidates(step):
            loading = self._seen.during("loading", "idle", str(path))
            with section("checkpoint.load"), loading:
                outcome = self._try(path, dict(state or {}))
            if isinstance(outcome, dict):
                return Loaded(number, path, outcome, tuple(passed_over))
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
        """Of which steps there are checkpoints, the one that was saved last first."""
        return list(dict.fromkeys(step for step, _ in checkpoints(self._directory)))

    def _candidates(self, step: int | None) -> list[tuple[int, Path]]:
        """As rank 0 sees them."""
        own = outcome(self._listed, self._directory) if self._ranks.rank == 0 else {}
        told = json.loads(self._ranks.texts(json.dumps(own))[0])
        if "error" in told:
            raise CheckpointError(f"no checkpoint can be looked for, for rank 0: {told['error']}")
        found = [(each, self._directory / name) for each, name in told["listed"]]
        return [each for each in found if step in (None, each[0])]

    def _listed(self) -> dict[str, Any]:
        return {"listed": [[step, path.name] for step, path in checkpoints(self._directory)]}

    def _check(self, state: dict[str, Any]) -> None:
        with Attempt() as attempt:  # also of the program's own models
            check_state(state, self._ranks)
        self._ranks.agree("could not save", attempt.error)

    def _try(self, path: Path, state: dict[str, Any]) -> dict[str, Any] | str:
        """The values, or why all ranks pass it over."""
        values: dict[str, Any] = {}
        misfit: Exception | None = None
        damage = ""
        try:
            with CheckpointReader(path) as reader:
                values = restore(state, reader, self._ranks)
        except DamagedCheckpoint as error:
            damage = str(error)
        except Exception as error:  # of whatever has a load_state_dict(); all ranks are told
            misfit = error
        told = self._ranks.texts(json.dumps([damage, "" if misfit is None else str(misfit)]))
        outcomes = [json.loads(each) for each in told]
        if misfit is not None:
            raise misfit if isinstance(misfit, TorshError) else _misfit(path, misfit) from misfit
        for rank, (_, other) in enumerate(outcomes):
            if other:
                raise CheckpointError(f"rank {rank} cannot load {path}: {other}")
        damages = [f"rank {rank}: {each}." for rank, (each, _) in enumerate(outcomes) if each]
        return damages[0] if damages else values


class _Background:
    """A call in a thread of its own."""

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
    """Of whatever has a whole number, as numpy's and torch's do. ConfigError for anything else."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise ConfigError(f"step must be a whole number from 0 on, not {step!r}")
    return number


def _misfit(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} does not fit: {type(error).__name__}: {error}")
