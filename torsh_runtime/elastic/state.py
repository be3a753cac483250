"""Defines State, from which a training run resumes when its workers have been restarted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from torsh_runtime.checkpoint.checkpointer import Checkpointer
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic.commits import Commits
from torsh_runtime.monitoring.marks import section

P = ParamSpec("P")
R = TypeVar("R")


class State:
    """Holds a training run's state, as Horovod's class of this name: its parts are attributes.

    Commits are stored in memory of torshrun's agent on each node: they outlive workers and end with
    the job. What only one node has is also kept in the next node's memory, so any one node can be
    lost. This takes twice the memory of the state that the rank's node keeps for itself, and twice
    that of what it keeps for another node. All ranks make the same calls in the same order.

    Raises:
        AttributeError: For parts that were not named when it was created.

    Example:
        ```python
        state = tr.elastic.State(model=model, optimizer=optimizer, sampler=sampler, step=0)
        state.restore()
        for indices in sampler:
            train(indices)
            state.step += 1
            state.commit()
        ```
    """

    def __init__(
        self,
        *,
        checkpointer: Checkpointer | None = None,
        process_group: Any = None,
        **parts: Any,
    ) -> None:
        """Name the parts of the state.

        Args:
            checkpointer: Loaded by restore() if there is no commit.
            process_group: The ranks, as for Checkpointer.
            **parts: Objects and values as Checkpointer.save() takes them.

        Raises:
            ConfigError: If the agent's memory cannot be opened.
        """
        self.__dict__["_parts"] = parts
        self.__dict__["_checkpointer"] = checkpointer
        self.__dict__["_commits"] = Commits(Ranks.of(process_group))
        self.__dict__["_callbacks"] = []

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_parts"][name]
        except KeyError:
            raise AttributeError(f"the state has no part {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._parts:
            raise AttributeError(
                f"the state has no part {name!r}, only {', '.join(self._parts)}: name it when you "
                f"make the state"
            )
        self._parts[name] = value

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Register functions that are called whenever restore() has changed the state.

        Use them to rebuild what depends on the number of ranks.

        Args:
            callbacks: Functions without arguments.

        Example:
            ```python
            state.register_reset_callbacks([lambda: print("resumed at step", state.step)])
            ```
        """
        self._callbacks.extend(callbacks)

    def commit(self) -> None:
        """Keep the current state in the agents' memory.

        When this returns on one rank, all ranks have kept it: if any worker or node dies from then
        on, restore() finds this commit or a later one. Without torshrun nothing is kept.

        Raises:
            CheckpointError: On all ranks if one cannot keep its state or has too little memory; the
                previous commit then remains.
            CommError: If communication fails.

        Example:
            ```python
            state.step += 1
            state.commit()
            ```
        """
        with section("elastic.commit"):
            self._commits.commit(self._parts)

    def restore(self) -> bool:
        """Restore the last commit, or without one the newest checkpoint.

        What a rank's node lacks is transferred from nodes that have it. If something is lost, as
        when two nodes that kept each other's shards fail at once, the previous commit is used, and
        then the checkpoint.

        Returns:
            Whether there was a commit or a checkpoint.

        Raises:
            CheckpointError: On all ranks if the state does not fit on one.
            CommError: If communication fails.

        Example:
            ```python
            state = tr.elastic.State(model=model, step=0)
            if state.restore():
                print("resumed at step", state.step)
            ```
        """
        values = self._commits.restore(self._parts)
        if values is None and self._checkpointer is not None:
            loaded = self._checkpointer.load(self._parts)
            values = None if loaded is None else loaded.values
        if values is None:
            return False
        self._parts.update({name: each for name, each in values.items() if name in self._parts})
        for call in self._callbacks:
            call()
        return True

    def sync(self) -> bool:
        """Call restore(), after which all ranks have the same state, and return its result."""
        return self.restore()


def run(
    train_fn: Callable[Concatenate[State, P], R],
) -> Callable[Concatenate[State, P], R]:
    """Wrap a function so that its state is restored before it runs, as horovod.elastic.run.

    Under torshrun, which starts workers again, that is all that a job needs to resume.

    Args:
        train_fn: A function whose first argument is a State.

    Returns:
        The function that calls state.restore() first, and raises what that raises.

    Example:
        ```python
        @tr.elastic.run
        def train(state):
            fit(state)

        train(tr.elastic.State(model=model, step=0))
        ```
    """

    @wraps(train_fn)
    def call(state: State, /, *arguments: P.args, **named: P.kwargs) -> R:
        state.restore()
        return train_fn(state, *arguments, **named)

    return call
