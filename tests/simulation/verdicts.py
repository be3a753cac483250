"""The right verdict: it is what happened, all learn the same, and no budget is over- or unspent."""

from __future__ import annotations

from simulation.record import Commit, Record, check

from torshrun import exit_codes
from torshrun.rendezvous import rows
from torshrun.rendezvous.base import Verdict
from torshrun.rendezvous.rows import Header, VerdictRow


def cause_of(agent: str) -> str:
    """What an agent reports as the cause of its own failure."""
    return f"a worker of {agent} ended with {code_of(agent)}"


def code_of(agent: str) -> int:
    """With which its workers fail, so that whose code a verdict has can be told."""
    return 10 + int("".join(filter(str.isdigit, agent)) or 0) % 40


class Verdicts:
    """Judges how the job ends, by what has truly become of the workers."""

    def __init__(self, record: Record, max_restarts: int) -> None:
        self._record = record
        self._max_restarts = max_restarts
        self.failures = 0
        """How many failures of workers were made."""

    def check(self, commit: Commit) -> None:
        record = self._record
        for event in commit.events:
            if record.codec.name(event.key) != rows.VERDICT or event.kind != "put":
                continue
            verdict = record.codec.read(VerdictRow, event)
            check(verdict is not None, "the verdict can be read")
            assert verdict is not None
            if record.verdict is not None:
                same = (record.verdict.outcome, record.verdict.code) == (
                    verdict.outcome,
                    verdict.code,
                )
                check(same, f"the verdict {verdict} replaces {record.verdict}")
            self._judge(verdict, record.header)

    def _judge(self, verdict: VerdictRow, header: Header | None) -> None:
        what = f"verdict {verdict}, header {header}"
        if verdict.outcome == "stopped":
            asked = verdict.code in self._record.stops or bool(self._record.leavers)
            check(asked, f"{what}: nobody asked for it")
        elif verdict.outcome == "preempted":
            gone = self._record.leavers | self._record.drained
            check(bool(gone) and self._too_few(header), f"{what}: enough are left, or none went")
        elif verdict.code == exit_codes.RENDEZVOUS:
            check(self._too_few(header), f"{what}: there are enough nodes")
        else:
            assert header is not None, what
            self._judge_round(verdict, header, what)

    def _too_few(self, header: Header | None) -> bool:
        record = self._record
        least = header.min_nodes if header else min(least for least, _ in record.limits)
        return sum(map(record.stays, record.nodes)) < least

    def _judge_round(self, verdict: VerdictRow, header: Header, what: str) -> None:
        outcomes = self._record.outcomes[header.token]
        if verdict.outcome == "succeeded":
            done = sum(outcome == "succeeded" for outcome in outcomes.values())
            check(done == header.size, f"{what}: {done} of {header.size} succeeded")
            return
        failed = [agent for agent, outcome in outcomes.items() if outcome == "failed"]
        check(verdict.outcome == "failed" and bool(failed), f"{what}: outcomes {outcomes}")
        named = [agent for agent in failed if cause_of(agent) in verdict.reason]
        check(len(named) == 1, f"{what}: the causes are {[*map(cause_of, failed)]}")
        spent = header.restarts >= header.max_restarts
        check(spent, f"{what}: {header.restarts} restarts of {header.max_restarts}")
        code = exit_codes.BUDGET_SPENT if header.max_restarts else code_of(named[0])
        check(verdict.code == code, f"{what}: the code should be {code}")

    def over(self, agent: str, verdict: Verdict) -> None:
        """An agent learnt how the job ended."""
        record = self._record
        check(bool(verdict.reason), f"{agent} ends without a reason: {verdict}")
        if (verdict.outcome, verdict.code) in record.verdicts:
            return
        left = agent in record.leavers and verdict.outcome in ("preempted", "stopped")
        lost = agent in record.expired and verdict.outcome == "lost"
        check(left or lost, f"{agent} ends with {verdict}, which never stood in the store")
