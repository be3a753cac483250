"""The hierarchy of errors. Each error has facts as attributes and says what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Blame(NamedTuple):
    """States what an error reports about other ranks, for the search for the root cause."""

    how: str
    """"lost": they ended. "late": they did not arrive in time. "mismatch": their calls differed."""
    ranks: tuple[int, ...] = ()
    """Blamed ranks, as ranks of the group; () if they are unknown."""
    op: str = ""
    """The operation of this rank."""
    calls: Mapping[int, str] = {}
    """In a mismatch, the calls of the ranks."""


class TorshError(Exception):
    """Represents everything that torshrun and torsh_runtime raise on purpose.

    All of them can be pickled and copied, as what comes out of other processes must be.

    Attributes:
        blame: What it says of other ranks; None if nothing.
        members: The ranks in the launched job of the group's ranks, in their order, -1 for one of a
            different job; () if that is not known.

    Example:
        ```python
        try:
            tr.init_process_group()
        except tr.TorshError as error:
            print(error)
        ```
    """

    blame: Blame | None = None
    members: tuple[int, ...] = ()


class ConfigError(TorshError, ValueError):
    """Reports that the caller's options, environment or arguments are wrong; nothing was started.

    It is a ValueError, too.

    Example:
        ```python
        try:
            tr.init_process_group("single")
        except tr.ConfigError as error:
            print(error)  # backend 'single' is for one rank; world_size is 4
        ```
    """


def disagreement(
    text: str, accounts: Mapping[int, str], members: Sequence[int] = ()
) -> ConfigError:
    """Return the error for ranks that were given different values.

    `accounts` describes the values by rank of the group. `members` as in TorshError."""
    error = ConfigError(text)
    error.blame = Blame("mismatch", tuple(accounts), "", accounts)
    error.members = tuple(members)
    return error


class StoreError(TorshError):
    """Reports that the key-value store refused a request or cannot be reached.

    Example:
        ```python
        try:
            tr.get_store().set("step", "7")
        except tr.StoreError:
            print("the store is gone")
        ```
    """


class StoreTimeout(StoreError, TimeoutError):
    """Reports that the store did not answer, or a key did not appear, within the time given.

    It is a TimeoutError, too.

    Example:
        ```python
        try:
            store.wait(["ready"], timeout=10)
        except tr.StoreTimeout as error:
            print(error)  # names the missing keys
        ```
    """


class RendezvousError(TorshError):
    """Reports that the nodes could not agree on a round."""


class RendezvousTimeout(RendezvousError, TimeoutError):
    """Reports that too few nodes joined within the join timeout."""


class WorkerFailed(TorshError):
    """Reports that a worker process failed."""


class CheckpointError(TorshError):
    """Reports that a checkpoint is missing, damaged or does not fit.

    Example:
        ```python
        try:
            checkpointer.load(state)
        except tr.CheckpointError as error:
            print(error)
        ```
    """


class BackendUnavailable(TorshError):
    """Reports that a backend or optional feature cannot be used on this machine.

    Attributes:
        feature: The feature's name.
        remedy: The command or step that makes it available.

    Example:
        ```python
        try:
            tr.init_process_group("nccl")
        except tr.BackendUnavailable as error:
            print(error.remedy)
        ```
    """

    def __init__(self, feature: str, remedy: str) -> None:
        super().__init__(f"{feature} is not available here. {remedy}")
        self.feature = feature
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.feature, self.remedy), self.__dict__


class PipelineError(TorshError, RuntimeError):
    """Reports that a stage of a pipeline raised, or that what it waits for did not come.

    All ranks of the pipeline raise it, and their group is dead.

    Attributes:
        rank: The rank whose stage it was, in the pipeline's group.
        stage: The stage's number.
        microbatch: The microbatch's number; None if it was none.
        step: The step, such as "F5", or "F5 waits for F5 of stage 0 of rank 0".
        reason: What went wrong there.
        place: The rank's name, such as "rank 3, pp 1, tp 1"; "" if it has no other name.

    Example:
        ```python
        try:
            loss = pipeline.step(batch, target)
        except tr.PipelineError as error:
            print(f"stage {error.stage} failed: {error.reason}")
            raise
        ```
    """

    def __init__(
        self,
        rank: int,
        stage: int,
        microbatch: int | None,
        step: str,
        reason: str,
        place: str = "",
    ) -> None:
        who = place or f"rank {rank} of the pipeline"
        super().__init__(f"{who}, stage {stage}, {step}: {reason}")
        self.rank, self.stage, self.microbatch = rank, stage, microbatch
        self.step, self.reason, self.place = step, reason, place

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self.rank, self.stage, self.microbatch, self.step, self.reason, self.place
        return type(self), facts, self.__dict__


class CommError(TorshError, RuntimeError):
    """Reports that a collective or message did not complete.

    The process group it happened in is dead afterwards; a new one may be created in the same
    process. With `async_op` the Work's `wait()` raises it.

    Example:
        ```python
        try:
            tr.all_reduce(gradient)
        except tr.CommError:
            tr.destroy_process_group()
            raise
        ```
    """


class PeerLost(CommError):
    """Reports that a rank died or left the group while this one needed it.

    Attributes:
        rank: The rank that was lost.
        op: What this rank was doing.
        sequence: Which operation of the group it was, counted from 1; 0 for messages and while the
            group is created.
        detail: What became of the rank, where more is known than that its process has ended.
        group: The group that the rank's number is of, such as "axis tp"; "" if ranks of the group
            are those of the job.
        name: The rank's name in the job, such as "rank 5, pp 1, tp 1"; "" if it has no other name.

    Example:
        ```python
        try:
            tr.barrier()
        except tr.PeerLost as error:
            print(f"rank {error.rank} was lost in {error.op}")
            raise
        ```
    """

    def __init__(
        self, rank: int, op: str, sequence: int, detail: str = "", group: str = "", name: str = ""
    ) -> None:
        what = (detail or "its process has ended") + (f" ({name})" if name else "")
        who = f"rank {rank} of {group}" if group else f"rank {rank}"
        output = name.partition(",")[0] or who
        super().__init__(
            f"{who} was lost during {named_operation(op, sequence)}: {what}. "
            f"Look at {output}'s own output for the cause."
        )
        self.rank = rank
        self.op = op
        self.sequence = sequence
        self.detail, self.group, self.name = detail, group, name
        self.blame = Blame("lost", (rank,), op)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self.rank, self.op, self.sequence, self.detail, self.group, self.name
        return type(self), facts, self.__dict__


class GradientError(TorshError, RuntimeError):
    """Reports that a backward pass did not give gradients that ranks could average.

    All ranks raise it, and none has changed its parameters.

    Attributes:
        problems: What was wrong, by rank.

    Example:
        ```python
        try:
            loss(model(batch)).backward()
        except tr.GradientError as error:
            print(error.problems)
            raise
        ```
    """

    def __init__(self, problems: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"rank {rank}: {text}" for rank, text in problems.items()))
        self.problems = dict(problems)
        self.blame = Blame("mismatch", tuple(problems), "backward", self.problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), self.__dict__


class StateCorrupted(TorshError):
    """Reports that ranks that are to have the same state have different bits.

    All ranks raise it. elastic.join() heals a minority from the others, where it may.

    Attributes:
        step: The number of the step that begins with that state.
        ranks: The ranks whose bits differ from those of the majority; all, if there is none.
        hosts: Their hosts, in the order of ranks.
        part: The first part of the state that differs, such as "model/0.weight".
        healthy: The ranks from which the others can be healed; () if they are not to be healed.

    Example:
        ```python
        try:
            train(job)
        except tr.StateCorrupted as error:
            print(error.hosts)
            raise
        ```
    """

    def __init__(
        self,
        step: int,
        ranks: Sequence[int],
        hosts: Sequence[str],
        part: str,
        healthy: Sequence[int] = (),
        has_majority: bool = True,
    ) -> None:
        self.step, self.ranks, self.hosts, self.part = step, tuple(ranks), tuple(hosts), part
        self.healthy, self.has_majority = tuple(healthy), has_majority
        self.blame = Blame("mismatch", self.ranks, "", dict(zip(ranks, hosts, strict=True)))
        super().__init__(
            f"{self.account()}: resume from a checkpoint of before, and without that host if it "
            f"happens again"
        )

    def account(self) -> str:
        """Return which ranks have other bits, and where.

        Example:
            ```python
            print(error.account())  # rank 1 (host a) has other bits than most ranks in …
            ```
        """
        pairs = zip(self.ranks, self.hosts, strict=True)
        who = ", ".join(f"rank {rank} (host {host})" for rank, host in pairs)
        have = "has" if len(self.ranks) == 1 else "have"
        what = "other bits than most ranks" if self.has_majority else "different bits"
        where = f"in the state at the beginning of step {self.step}, first in {self.part}"
        why = "" if self.has_majority else ", and no majority has the same"
        return f"{who} {have} {what} {where}{why}; memory or a processor there may be faulty"

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self.step, self.ranks, self.hosts, self.part, self.healthy, self.has_majority
        return type(self), facts, self.__dict__


class CommTimeout(CommError, TimeoutError):
    """Reports that an operation passed its deadline. It is a TimeoutError, too.

    Attributes:
        op: The operation.
        sequence: Which operation of the group it was, counted from 1; 0 for messages.
        seconds: The timeout.
        missing: The ranks that had not arrived; () if that is not known.
        detail: What else the text says of them.

    Example:
        ```python
        try:
            tr.barrier(timeout=30)
        except tr.CommTimeout as error:
            print("missing ranks:", error.missing)
            raise
        ```
    """

    def __init__(
        self, op: str, sequence: int, seconds: float, missing: Sequence[int], detail: str = ""
    ) -> None:
        text = f"{named_operation(op, sequence)} timed out after {seconds:g} s"
        if missing:
            ranks = ", ".join(map(str, missing))
            text += (
                f" waiting for rank(s) {ranks}{detail}. Either they never called it, or they are "
                f"slow: raise the group's timeout if they are."
            )
        else:
            text += detail or ", and it is not known whom it waited for. Make a new process group"
            text += "."
        super().__init__(text)
        self.op = op
        self.sequence = sequence
        self.seconds = seconds
        self.missing = tuple(missing)
        self.detail = detail
        self.blame = Blame("late", self.missing, op)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = self.op, self.sequence, self.seconds, self.missing, self.detail
        return type(self), facts, self.__dict__


class CommAborted(CommError):
    """Reports that the group was aborted on purpose, by this process or by a peer.

    Example:
        ```python
        work = tr.all_reduce(gradient, async_op=True)
        tr.group.WORLD.abort()
        work.wait()  # raises CommAborted, unless the operation was complete
        ```
    """

    blame = Blame("lost")


class CommMismatch(CommError):
    """Reports that two ranks called different operations, or one with different arguments.

    Attributes:
        sequence: Which operation of the group it was, counted from 1.
        rank: This rank.
        call: This rank's call.
        other_rank: A rank whose call was different.
        other_call: That rank's call.
        detail: What else the text says of these ranks.

    Example:
        ```python
        try:
            tr.all_reduce(gradient)
        except tr.CommMismatch as error:
            print(f"rank {error.other_rank} called {error.other_call}")
            raise
        ```
    """

    def __init__(
        self,
        sequence: int,
        rank: int,
        call: str,
        other_rank: int,
        other_call: str,
        detail: str = "",
    ) -> None:
        where = f" in operation {sequence} of the group" if sequence else ""
        super().__init__(
            f"ranks disagree{where}{detail}: rank {rank} called {call}, "
            f"rank {other_rank} called {other_call}. Every rank must make the same calls in the "
            f"same order."
        )
        self.sequence = sequence
        self.rank = rank
        self.call = call
        self.other_rank = other_rank
        self.other_call = other_call
        self.detail = detail
        calls = {rank: call, other_rank: other_call}
        self.blame = Blame("mismatch", (other_rank,), call.partition("(")[0], calls)

    def __reduce__(self) -> tuple[Any, ...]:
        facts = (self.sequence, self.rank, self.call, self.other_rank, self.other_call, self.detail)
        return type(self), facts, self.__dict__


def named_operation(op: str, sequence: int) -> str:
    """Return the name of an operation for errors; `sequence` as in PeerLost."""
    return f"{op} (operation {sequence} of the group)" if sequence else op
