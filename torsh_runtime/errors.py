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
    """Base class of all errors that torshrun and torsh_runtime raise on purpose.

    All of them can be pickled and copied, since some are passed between processes.

    Attributes: blame (what it reports about other ranks; None if nothing), members (for each rank
    of the group its rank in the launched job, -1 for a rank of a different job; () if unknown).
    """

    blame: Blame | None = None
    members: tuple[int, ...] = ()


class ConfigError(TorshError, ValueError):
    """Reports wrong options, environment variables or arguments; nothing was started."""


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
    """Reports that the key-value store refused a request or cannot be reached."""


class StoreTimeout(StoreError, TimeoutError):
    """Reports that the store did not answer, or a key did not appear, within the timeout."""


class RendezvousError(TorshError):
    """Reports that the nodes could not agree on a round."""


class RendezvousClosed(RendezvousError):
    """Reports that the run is over; no further round will be formed."""


class RendezvousTimeout(RendezvousError, TimeoutError):
    """Reports that too few nodes joined within the join timeout."""


class WorkerFailed(TorshError):
    """Reports that a worker process failed."""


class CheckpointError(TorshError):
    """Reports that a checkpoint is missing, damaged or does not fit the program."""


class BackendUnavailable(TorshError):
    """Reports that a backend or optional feature cannot be used on this machine.

    Attributes: feature (its name), remedy (the command or step that makes it available).
    """

    def __init__(self, feature: str, remedy: str) -> None:
        super().__init__(f"{feature} is not available here. {remedy}")
        self.feature = feature
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.feature, self.remedy), self.__dict__


class PipelineError(TorshError, RuntimeError):
    """Reports that a stage of a pipeline raised an error, or that its input did not come.

    All ranks of the pipeline raise it, and their group cannot be used afterwards.

    Attributes: rank (the stage's rank in the pipeline's group), stage, microbatch (None if it
    concerns none), step (such as "F5", or "F5 waits for F5 of stage 0 of rank 0"), reason (what
    went wrong there), place (that rank's place in the job, "rank 3, pp 1, tp 1"; "" if it has no
    other name).
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
    """Reports that a collective did not complete.

    Its process group cannot be used afterwards; a new one may be created in the same process.
    """


class PeerLost(CommError):
    """Reports that a different rank died or left the group while this one needed it.

    Attributes: rank (the lost rank), op (the operation of this rank), sequence (the number of the
    operation in the group, from 1; 0 for messages and while the group is created), detail (how the
    rank was lost, if more is known than that its process has ended), group (the group of the rank,
    such as "axis tp"; "" if the group's ranks are those of the job), name (the rank's name in the
    job, such as "rank 5, pp 1, tp 1"; "" if it has no other name).
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
    """Reports that a backward pass gave gradients that the ranks could not average.

    All ranks raise it, and none has changed its parameters.

    Attributes: problems (what was wrong, by rank).
    """

    def __init__(self, problems: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"rank {rank}: {text}" for rank, text in problems.items()))
        self.problems = dict(problems)
        self.blame = Blame("mismatch", tuple(problems), "backward", self.problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), self.__dict__


class CommTimeout(CommError, TimeoutError):
    """Reports that a collective exceeded its deadline.

    Attributes: op, sequence, seconds (the timeout), missing (ranks that had not arrived),
    detail (further text about them).
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
    """Reports that the group was aborted on purpose, by this process or by a peer."""

    blame = Blame("lost")


class CommMismatch(CommError):
    """Reports that two ranks called different operations, or the same one with different arguments.

    Attributes: sequence, rank and call (of this rank), other_rank and other_call, detail (further
    text about these ranks).
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
