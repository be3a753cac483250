"""Defines Step, one attempt at a step of a training that join() protects."""

from __future__ import annotations

import time
from enum import Enum, auto
from types import TracebackType
from typing import Any, Protocol

from torsh_runtime.errors import CommAborted, ConfigError, PeerLost, StateCorrupted, TorshError
from torsh_runtime.status import report_step

LOST = (PeerLost, CommAborted)
"""The errors with which operations end when a worker of the round is lost."""
_REPEATED = (*LOST, StateCorrupted)
"""The errors after which a step may be repeated."""


class StepState(Enum):
    """Names the states of an attempt, in their order. A lost attempt is never committed."""

    NEW = auto()
    OPEN = auto()
    COMMITTED = auto()
    CLOSED = auto()


class Protecting(Protocol):
    """Lists what a step needs of its training."""

    @property
    def rank(self) -> int:
        """Return this process's rank."""

    def begin_step(self) -> None:
        """Prepare the state and the random numbers for a step."""

    def next_batch(self, loader: Any) -> Any:
        """Return the next batch of a loader."""

    def commit(self) -> None:
        """Agree with all ranks that the step is done, and only then change the state."""

    def recover(self, lost: TorshError) -> None:
        """Go back to the last commit, with the other ranks, or raise the error."""

    def check_complete(self) -> None:
        """Raise ConfigError if a part would miss a change, as the block was left after commit()."""

    def note_time(self, seconds: float) -> None:
        """Note how long a step took."""


class Step:
    """Represents one attempt at a step; a context manager around the work of that step.

    Example:
        ```python
        with step:
            loss(model(step.next(sampler))).backward()
            step.commit()
        ```
    """

    def __init__(self, training: Protecting, number: int) -> None:
        """Prepare the attempt."""
        self._training = training
        self.number = number
        """The number of the step, from 0."""
        self.is_lost = False
        """Whether a worker was lost before this rank has committed the step."""
        self.has_failed = False
        """Whether an error has left the block."""
        self._state = StepState.NEW
        self._begun = 0.0

    def next(self, loader: Any) -> Any:
        """Return the next batch, the same one when the step is repeated.

        Behind the last batch of an epoch the next epoch begins.

        Args:
            loader: An ElasticSampler that is a part of the training, or a DataLoader whose
                batch_sampler is its ahead().

        Returns:
            What the loader gives: indices, or a batch.

        Raises:
            ConfigError: For other loaders, and outside of the step.

        Example:
            ```python
            with step:
                inputs = data[step.next(sampler)]
            ```
        """
        self._check_open("next()")
        return self._training.next_batch(loader)

    def commit(self) -> None:
        """Wait until all ranks have come here, then call the optimizers and drop the gradients.

        All ranks commit the step, or none does.

        Raises:
            ConfigError: When the step was committed already, and outside of it.
            CommError: If a rank was lost; the step then begins again.

        Example:
            ```python
            with step:
                loss(model(batch)).backward()
                step.commit()
            ```
        """
        self._check_open("commit()")
        self._training.commit()
        self._state = StepState.COMMITTED

    def check_entered(self) -> None:
        """Raise ConfigError if the step was passed over."""
        if self._state is StepState.NEW:
            raise ConfigError(
                f"rank {self._training.rank}: step {self.number} was not entered: write `with "
                f"step:` in the loop, and step.commit() in that block"
            )

    def __enter__(self) -> Step:
        if self._state is not StepState.NEW:
            raise ConfigError(
                f"rank {self._training.rank}: step {self.number} was entered before: take the next "
                f"step of steps()"
            )
        self._state, self._begun = StepState.OPEN, time.monotonic()
        report_step(self.number)
        self._training.begin_step()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        was_committed = self._state is StepState.COMMITTED
        self._state, self.has_failed = StepState.CLOSED, True
        self._training.note_time(time.monotonic() - self._begun)
        if isinstance(error, _REPEATED):
            if was_committed:
                self._training.check_complete()
            self._training.recover(error)
            self.is_lost, self.has_failed = not was_committed, False
            return True
        if error is None and not was_committed:
            raise ConfigError(
                f"rank {self._training.rank}: step {self.number} ended without commit(): call "
                f"step.commit() at the end of the block. If an `except` in it catches CommError, "
                f"let the error out, because the ranks meet again only outside of the block"
            )
        self.has_failed = error is not None
        return False

    def _check_open(self, call: str) -> None:
        if self._state is StepState.OPEN:
            return
        where = {
            StepState.NEW: "before its block: call it within `with step:`",
            StepState.COMMITTED: "after its commit(): commit a step once, at the end of its block",
            StepState.CLOSED: "behind its block: call it within `with step:`",
        }
        raise ConfigError(
            f"rank {self._training.rank}: {call} of step {self.number} was called "
            f"{where[self._state]}"
        )
