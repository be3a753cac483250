"""Lets ranks find out, over any backend, that they mean the same; agree() is the one way.

Each rank sends a checksum of what it means to do, or of why it cannot, in one exchange of 8 bytes.
Texts are exchanged only where checksums differ. Then every rank raises the same error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from torsh_runtime.comm.group import ProcessGroup
from torsh_runtime.errors import Blame, CommError, ConfigError, TorshError, disagreement

Value = str | Mapping[str, object]
_MOST_BYTES = 1 << 31
"""A limit of the texts that ranks exchange: a larger number cannot be a number of bytes."""


class Said(NamedTuple):
    """Holds the account that a rank gives if not all ranks give the same."""

    what: str
    """The call that it is in; "" if it is in none that agrees."""
    problem: str
    is_own: bool
    """True if the problem arose on this rank, not on one that reported it to this one."""
    answers: list[list[str]]
    """Lines, which are compared one by one until the first that differs."""


class Attempt:
    """Runs a block that may fail on some ranks, ahead of agree(), and keeps the exception.

    The other ranks would wait for this one if the exception left the block. Failures of
    communication do leave it.

    Attributes:
        error: The last exception; None if there was none.
    """

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception) or isinstance(error, CommError):
            return False
        self.error = error
        return True


def agree(
    group: ProcessGroup,
    what: str,
    value: Value = "",
    problem: Exception | None = None,
    advice: str = "Call it alike on all ranks",
    error: type[TorshError] = ConfigError,
) -> None:
    """Raise the same ConfigError on all ranks unless all mean the same and have no problem.

    All ranks call it; it blocks. If all are in the same call, mean the same by it and have no
    problem, it takes one all_gather of 8 bytes.

    Args:
        group: The ranks that are to agree.
        what: The call, as its user knows it.
        value: What it is to do, in words, or several questions with their answers; of an answer
            that is a list of lines, the error names the first that differs. str(value) has all of
            it, in the same words in all processes.
        problem: Why this rank cannot continue, as an Attempt keeps it. All ranks raise it unchanged
            if it is one of this package's errors and the same everywhere.
        advice: What to do if values differ.
        error: The error to raise instead of ConfigError for problems.
    """
    told = compared(group, what, value, problem)
    if told is not None:
        raise complaint(group, told, problem, advice, error)


def agree_in_turn(
    values: Mapping[ProcessGroup, Value],
    what: str,
    problem: Exception | None = None,
    advice: str = "Call it alike on all ranks",
) -> None:
    """Call agree() in each of several groups, in order.

    What one group finds is reported to the ranks of the next ones, too.
    """
    attempt = Attempt()
    attempt.error = problem
    for group, value in values.items():
        with attempt:
            agree(group, what, value, attempt.error, advice)
    if attempt.error is not None:
        raise attempt.error


def compared(
    group: ProcessGroup, what: str, value: Value, problem: Exception | None = None
) -> list[Said] | None:
    """Return the accounts of all ranks, by rank, or None if they agree; see agree().

    They agree if all are in the same call, mean the same by it and have no problem.
    """
    text = f"{what}\n{value}\n{problem!r}"
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    told = group.all_gather_numbers(np.frombuffer(digest, np.int64))
    is_same = len({*told[:, 0].tolist()}) == 1
    if is_same and problem is None:
        return None
    own = _said(what, value, problem)
    if is_same:
        return [own] * len(told)
    return [_read(text) for text in texts_of_all(group, json.dumps(own))]


def complaint(
    group: ProcessGroup,
    told: Sequence[Said],
    problem: Exception | None = None,
    advice: str = "",
    error: type[TorshError] = ConfigError,
) -> TorshError:
    """Return the error that the accounts of compared() amount to, the same on all ranks."""
    problems = {said.problem: rank for rank, said in reversed([*enumerate(told)]) if said.problem}
    if not problems:
        return _difference(group, told, advice)
    if all(said == told[0] for said in told):
        found = problem if isinstance(problem, TorshError) else error(*problems)
    else:
        named = (
            f"{group.called(rank)}: {text}" if told[rank].is_own else text
            for text, rank in problems.items()
        )
        found = error("; ".join(dict.fromkeys(named)))
        own = {rank: said.problem for rank, said in enumerate(told) if said.is_own}
        found.blame = Blame("mismatch", tuple(own), told[group.rank].what, own)
        found.members = tuple(group.job_ranks)
    if found is not problem:
        found.__cause__ = problem
    return found


def _said(what: str, value: Value, problem: Exception | None) -> Said:
    if problem is None:
        return Said(what, "", False, _lines(value))
    is_own = getattr(problem, "blame", None) is None  # else it names ranks already
    return Said(what, said(problem), is_own, [])


def said(error: Exception | None) -> str:
    """Return the text by which other ranks hear of an error, or "" for None."""
    if error is None or isinstance(error, TorshError):
        return str(error or "")
    return f"{type(error).__name__}: {error}"


def _lines(value: Value) -> list[list[str]]:
    if isinstance(value, str):
        return [[value]]
    return [
        answer if isinstance(answer, list) else [f"{name}={answer!r}"]
        for name, answer in value.items()
    ]


def _read(text: str) -> Said:
    """Parse a rank's account. That rank may be in a call that does not agree."""
    try:
        what, problem, is_own, answers = json.loads(text)
    except (ValueError, TypeError):
        return Said("", "", False, [])
    return Said(what, problem, is_own, answers)


def _difference(group: ProcessGroup, told: Sequence[Said], advice: str) -> ConfigError:
    calls = [said.what or "something else" for said in told]
    found = [each for each in map(_first, _columns(told)) if each]
    if len({*calls}) > 1 or not found:
        text = f"ranks call different things: {by_rank(calls, group)}"
        advice = "Make the same calls in the same order on all ranks"
        return disagreement(f"{text}. {advice}", dict(enumerate(calls)), group.job_ranks)
    named = "; ".join(by_rank(each, group) for each in found)
    text = f"{calls[0]} differs between ranks: {named}. {advice}"
    return disagreement(text, dict(enumerate(found[0])), group.job_ranks)


def _columns(told: Sequence[Said]) -> list[list[list[str]]]:
    """Return the ranks' answers, by question."""
    most = max(len(said.answers) for said in told)
    return [
        [said.answers[number] if number < len(said.answers) else [] for said in told]
        for number in range(most)
    ]


def _first(answers: Sequence[Sequence[str]]) -> list[str]:
    """Return the first line that differs between ranks, by rank, or [] if none does."""
    for number in range(max(map(len, answers))):
        here = [lines[number] if number < len(lines) else "nothing more" for lines in answers]
        if len({*here}) > 1:
            return here
    return []


def texts_of_all(group: ProcessGroup, text: str) -> list[str]:
    """Return the texts of all ranks, by rank. It blocks."""
    own = np.frombuffer(text.encode(), np.uint8)
    sizes = group.all_gather_numbers(np.array([own.size], np.int64))[:, 0]
    if not 0 <= sizes.min() <= sizes.max() < _MOST_BYTES:
        raise ConfigError(
            "ranks call different things, and what some of them tell is no text: make the same "
            "calls in the same order on all ranks"
        )
    padded = np.zeros((int(sizes.max()) // 8 + 1) * 8, np.uint8)
    padded[: own.size] = own
    rows = group.all_gather_numbers(padded.view(np.int64))
    return [
        rows[rank].tobytes()[:size].decode(errors="replace")
        for rank, size in enumerate(sizes.tolist())
    ]


def by_rank(lines: Sequence[str], group: ProcessGroup) -> str:
    """Return which ranks of a group say what, such as "a on rank(s) 0, 2, b on rank(s) 1".

    The ranks are those of the default group.
    """
    ranks: dict[str, list[str]] = {}
    for rank, line in zip(group.ranks, lines, strict=True):
        ranks.setdefault(line, []).append(str(rank))
    return ", ".join(f"{line} on rank(s) {', '.join(who)}" for line, who in ranks.items())
