"""State: what a training goes on from when workers have been started again."""

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
    """A training's state, after Horovod's class of this name: its parts are attributes.

        state = tr.elastic.State(model=model, optimizer=optimizer, sampler=sampler, step=0)
        state.restore()
        for indices in sampler:
            ...
            state.step += 1
            state.commit()

    Commits lie in memory of torshrun's agent on each node: they outlive workers, and are gone with
    the job. What only one node has is kept in the next node's memory, too, so any one node can be
    lost. It takes twice what the rank's node keeps of the state, and twice what it keeps for
    another. All ranks make the same calls in the same order.
    """

    def __init__(
        self,
        *,
        checkpointer: Checkpointer | None = None,
        process_group: Any = None,
        **parts: Any,
    ) -> None:
        """parts: as Checkpointer.save() takes them. checkpointer: what restore() turns to if there
        is no commit. process_group: as Checkpointer's. ConfigError if the agent's memory cannot be
        found where it should be."""
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
        """Call these whenever restore() has changed the state: what depends on the number of ranks
        is made anew there."""
        self._callbacks.extend(callbacks)

    def commit(self) -> None:
        """Keep the state as it is now. When this returns on one rank, all have kept it: whichever
        worker or node dies from then on, restore() finds this commit or a later one. Without
        torshrun nothing is kept.

        Raises CheckpointError on all ranks if one cannot keep what it has, or has too little
        memory for it: then the commit before stays.
        """
        with section("elastic.commit"):
            self._commits.commit(self._parts)

    def restore(self) -> bool:
        """Go back to the last commit; without one to the newest checkpoint, if there is a
        checkpointer. Whether there was one.

        What a rank's node has not comes from those that have it. If something is nowhere any more,
        as when two nodes are lost at once that kept each other's shards, the commit before counts,
        and then the checkpoint.

        Raises CheckpointError on all ranks if it does not fit on one.
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
        """The same as restore(): all ranks have the same state afterwards."""
        return self.restore()


def run(
    train_fn: Callable[Concatenate[State, P], R],
) -> Callable[Concatenate[State, P], R]:
    """The function, called with a state that is restored first, after horovod.elastic.run:

        @tr.elastic.run
        def train(state): ...

        train(state)

    Under torshrun, which starts workers again, that is all that a job needs to go on.
    """

    @wraps(train_fn)
    def call(state: State, /, *arguments: P.args, **named: P.kwargs) -> R:
        state.restore()
        return train_fn(state, *arguments, **named)

    return call
