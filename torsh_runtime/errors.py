"""The one error tree. Each error carries facts as attributes and says what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Blame(NamedTuple):
    """What an error says of other ranks, for who looks for the root cause."""

    how: str
    """"lost": they ended. "late": they did not come in time. "mismatch": they did other things."""
    ranks: tuple[int, ...] = ()
    """Whom it blames, by the group's own ranks; () if it does not know."""
    op: str = ""
    """What this rank was doing."""
    calls: Mapping[int, str] = {}
    """Of a mismatch: what ranks called."""


class TorshError(Exception):
    """Root of everything that torshrun and torsh_runtime raise on purpose.

    All of them can be pickled and copied, as what comes out of other processes must be.

    Attributes: blame (what it says of other ranks; None if nothing), members (the ranks in the
    launched job of the group's ranks, in their order, -1 for who is of another job; () if that is
    not known).
    """

    blame: Blame | None = None
    members: tuple[int, ...] = ()


class ConfigError(TorshError, ValueError):
    """The caller's options, environment or arguments are wrong; nothing was started."""


def disagreement(
    text: str, accounts: Mapping[int, str], members: Sequence[int] = ()
) -> ConfigError:
    """What is raised where ranks were given different things; `accounts` says what, by rank of a
    group with these `members`."""
    error = ConfigError(text)
    error.blame = Blame("mismatch", tuple(accounts), "", accounts)
    error.members = tuple(members)
    return error


class StoreError(TorshError):
    """The key-value store refused a request or cannot be reached."""


class StoreTimeout(StoreError, TimeoutError):
    """The store did not answer, or a key did not appear, within the time given."""


class RendezvousError(TorshError):
    """The nodes could not agree on a round."""


class RendezvousClosed(RendezvousError):
    """The run is over; no further round will be formed."""


class RendezvousTimeout(RendezvousError, TimeoutError):
    """Too few nodes came within the join timeout."""


class WorkerFailed(TorshError):
    """A worker process ended badly."""


class CheckpointError(TorshError):
    """A checkpoint is missing, damaged or does not fit."""


class BackendUnavailable(TorshError):
    """A backend or optional feature cannot be used on this machine.

    Attributes: feature (its name), remedy (the command or step that makes it available).
    """

    def __init__(self, feature: str, remedy: str) -> None:
        super().__init__(f"{feature} is not available here. {remedy}")
        self.feature = feature
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.feature, self.remedy), self.__dict__


class PipelineError(TorshError, RuntimeError):
    """A stage of a pipeline raised, or what it waits for did not come; all ranks of the pipeline
    raise it, and their group is dead.

    Attributes: rank (whose stage it was, in the pipeline's group), stage, microbatch (None: of
    none), step (such as "F5", or "F5 waits for F5 of stage 0 of rank 0"), reason (what went wrong
    there), place (who that rank is, "rank 3, pp 1, tp 1"; "" if it has no other name).
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
    """A collective did not complete. The process group it happened in is dead afterwards;
    a new one may be made in the same process.
    """


class PeerLost(CommError):
    """Another rank died or left the group while this one needed it.

    Attributes: rank (who was lost), op (what this rank was doing), sequence (which operation of
    the group it was, counted from 1; 0 for messages and while the group is made), detail (what
    became of it, where more is known than that its process has ended), group (whose rank that is,
    such as "axis tp"; "" if ranks of the group are those of the job), name (who that is in the job,
    such as "rank 5, pp 1, tp 1"; "" where it has no other name).
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
    """A backward pass did not give the gradients that ranks could average; all ranks raise it, and
    none has changed its parameters.

    Attributes: problems (what was wrong, by rank).
    """

    def __init__(self, problems: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"rank {rank}: {text}" for rank, text in problems.items()))
        self.problems = dict(problems)
        self.blame = Blame("mismatch", tuple(problems), "backward", self.problems)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problems,), self.__dict__


class CommTimeout(CommError, TimeoutError):
    """A collective passed its deadline.

    Attributes: op, sequence, seconds (the timeout), missing (ranks that had not arrived),
    detail (what else the text says of them).
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
    """The group was aborted on purpose, by this process or by a peer."""

    blame = Blame("lost")


class CommMismatch(CommError):
    """Two ranks called different operations, or the same one with different arguments.

    Attributes: sequence, rank and call (this rank's own), other_rank and other_call, detail (what
    else the text says of these ranks).
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
    """How errors name an operation; `sequence` as in PeerLost."""
    return f"{op} (operation {sequence} of the group)" if sequence else op
