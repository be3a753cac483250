"""Whether, and when, workers are started again after a failure. Pure."""

from __future__ import annotations

from torshrun.agent.protocol import Attempt, Diagnosed, Policy, Sequel

LONGEST_PAUSE = 60.0
"""Seconds; the pause doubles up to this."""
STABLE_SECONDS = 300.0
"""A round that lasted so long ends a streak of failures."""
_VARIATION = 0.25
"""How much longer or shorter than planned a pause may be, so that jobs that failed together of one
cause do not all return in the same moment."""


def judge(policy: Policy, attempt: Attempt, failure: Diagnosed) -> Sequel:
    """What follows from a failure."""
    if failure.unkillable:
        return "unkillable"
    if not policy.max_restarts:
        return "no budget"
    if attempt.restarts >= policy.max_restarts:
        return "budget spent"
    return "same start" if failure.startup and failure.startup == attempt.startup else "restart"


def following(attempt: Attempt, failure: Diagnosed) -> Attempt:
    """The attempt after one that failed."""
    return Attempt(
        round=attempt.round + 1,
        restarts=attempt.restarts + 1,
        streak=0 if failure.seconds >= STABLE_SECONDS else attempt.streak + 1,
        startup=failure.startup,
    )


def pause(policy: Policy, attempt: Attempt, chance: float) -> float:
    """Seconds to wait before this attempt: none before the first of a streak, then exponentially
    more, varied at random.
    """
    if attempt.streak < 2 or not policy.backoff:
        return 0.0
    planned = min(policy.backoff * 2.0 ** min(attempt.streak - 2, 60), LONGEST_PAUSE)
    return planned * (1 + _VARIATION * (2 * chance - 1))
