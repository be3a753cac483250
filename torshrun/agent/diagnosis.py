"""Diagnoses a round that is over, from the ends of its workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from torshrun.agent.left_files import keep_error, left_stack, noted_ending
from torshrun.agent.moment import NO_WAIT, Moment, child_of, waits_of
from torshrun.agent.protocol import Cause
from torshrun.agent.round import Round
from torshrun.agent.sources import conditions, is_passing_through, with_sources
from torshrun.config.job import OutputConfig
from torshrun.health.recordings import save
from torshrun.procfs import read_stat
from torshrun.safe_files import Folder
from torshrun.text import format_ranks
from torshrun.workers.group import WorkerGroup
from torshrun.workers.worker import Worker

if TYPE_CHECKING:  # at the start it would take time
    from torshrun.agent.facts import Fact
    from torshrun.failure.exits import Exit, OomEvidence
    from torshrun.failure.explanation import Explanation
    from torshrun.failure.kinds import Kind
    from torshrun.failure.root_cause import RootCause
    from torshrun.health.clocks import CommonClock

Result = TypeVar("Result")
STARTUP_SECONDS = 10.0
"""Seconds within which a worker that fails has failed at its start.

It has unless a process group was initialised before.
"""
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOOKED_INTO = ("failure", "hang", "closing", "verdict")
MOST_LOOKED_UP = 8
"""Ranks of which it is looked up who holds a port, or which disk is full."""
Recorded = tuple[bytes, str, int, int, int, float, "CommonClock | None"]
"""Copied recordings with the run's id, the round, the node's rank and that of its first worker, the
moment, and the common clock then.
"""
STACK_CHARS = 1 << 14
"""Characters of a stack that are kept."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Holds what was found about why a round ended as it did."""

    explained: Explanation | None = None
    """None if no worker failed."""
    kind: Kind | None = None
    """Kind of the failure of `cause`; None if there is no cause."""
    startup: str = ""
    """Description of a failure at the start that a retry may not change; "" if there was none."""
    testimony: str = ""
    """Report for other nodes; "" if they need none."""
    account: str = ""
    """Content for `testimony`, also if there are no other nodes."""

    @property
    def cause(self) -> Exit | None:
        """Return the worker whose end counts as the round's; None if none failed."""
        return self.explained.cause if self.explained else None

    @property
    def finding(self) -> RootCause | None:
        """Return the root cause; None if none failed."""
        return self.explained.finding if self.explained else None

    @property
    def summary(self) -> str:
        """Return the root cause in one line, as in the report; "" if nobody failed."""
        from torshrun.failure.exits import how

        cause, finding = self.cause, self.finding
        if cause is None or finding is None:
            return ""
        if cause.rank not in finding.ranks or finding.certainty == "undecided":
            return finding.summary
        return f"{format_ranks(finding.ranks)}: {how(cause)} ({finding.reading.kind})"


@dataclass
class Diagnosis:
    """Collects the facts about the workers of a round."""

    output: OutputConfig
    folder: Folder | None
    """Folder where output is kept."""
    tells_others: bool = False
    """True if other nodes are to know how the workers here ended, or were stopped."""
    clock: Callable[[float], CommonClock | None] = lambda at: None
    """Returns the nodes' common clock at a moment of this node's."""

    def __post_init__(self) -> None:
        self._looking = asyncio.Lock()
        """Held while it is looked up what ranks could not have: findings go by that."""
        self.begin()

    def prepare(self) -> None:
        """Load what a diagnosis takes, which would hold up a restart for a tenth of a second."""
        import torshrun.failure.explanation
        import torshrun.failure.exported_reports  # noqa: F401

    def begin(self, node_rank: int = 0) -> None:
        """Begin a round."""
        self.node_rank = node_rank
        self.no_start = ""
        """Why workers could not be started; "" is nothing."""
        self.hung: Mapping[int, str] = {}
        """What was found about ranks whose own timers ran out, in one line each."""
        self.hang = ""
        """The hang in one line; "" is none."""
        self.stood_still = ""
        """The same of workers that somebody stopped while they hung."""
        self.stacks: Mapping[int, str] = {}
        """Where ranks stood when they hung."""
        self.facts: dict[int, Fact] = {}
        """What the machine knew of what ranks could not have, when they failed."""
        self.moment: Moment | None = None
        """What was seen before workers were stopped; None if they were not."""

    def look(self, now: float, group: WorkerGroup, a_round: Round | None) -> None:
        """Record where the workers stand, just before they are stopped."""
        pages = a_round.pages.read() if a_round else ()
        ranks = [worker.rank for worker in group.workers]
        alive = {worker.rank: read_stat(worker.pid) for worker in group.workers if worker.alive}
        states = {rank: stat.state for rank, stat in alive.items() if stat}
        children = {each.rank: child_of(each.pid) for each in group.workers if each.alive}
        statuses = dict(zip(ranks, pages, strict=False))
        operations = a_round.recordings.copy() if a_round else b""
        waits = waits_of(group.workers)
        self.moment = Moment(now, statuses, states, children, waits, operations)

    def wants_stacks(self, cause: Cause) -> bool:
        """Return whether it matters where workers stand that are stopped for this cause."""
        return cause in _LOOKED_INTO or bool(self.stood_still)

    async def findings(self, endings: Sequence[Worker], a_round: Round | None = None) -> Findings:
        """Return what is known of a round with these endings so far; more if it is over.

        Workers among them that live survived SIGKILL.
        """
        told = self.tells_others and any(ending.stopped for ending in endings)
        failed = any(ending.status for ending in endings)
        if not (failed or self.hung or self.hang or told):
            return Findings()
        oom = a_round.memory.evidence() if a_round else None
        pages = a_round.pages.read() if a_round else ()
        initialised = any(each.initialised for each in pages)
        recorded = self._recorded(endings, a_round)
        async with self._looking:
            found = await in_thread(partial(self._examine, endings, oom, initialised, recorded))
        if a_round and self.folder and endings:
            await in_thread(partial(self._keep, self.folder, endings, recorded, found))
        return found

    def _recorded(self, endings: Sequence[Worker], a_round: Round | None) -> Recorded | None:
        """Return the workers' recordings from before they were stopped, with what framed() needs.

        Return None if there are no recordings.
        """
        now = time.monotonic()
        copied, at = (self.moment.operations, self.moment.at) if self.moment else (b"", now)
        if not copied and a_round:
            copied, at = a_round.recordings.copy(), now
        if not (copied and endings):
            return None
        place = endings[0].assignment.worker
        first = place.rank - place.local_rank
        return copied, place.run_id, place.round, self.node_rank, first, at, self.clock(at)

    def _keep(
        self,
        folder: Folder,
        endings: Sequence[Worker],
        recorded: Recorded | None,
        found: Findings,
    ) -> None:
        """Keep the recordings, and what is known of the ends, beside the output, for torshctl."""
        from torshrun.health.accounts import Account, save_account

        place = endings[0].assignment.worker
        begin = place.rank - place.local_rank
        ranks = range(begin, begin + place.local_world_size)
        stacks = {each.assignment.worker.rank: self._stack(each)[:STACK_CHARS] for each in endings}
        host = os.uname().nodename
        with contextlib.suppress(OSError):  # of a full disk others tell
            if recorded:
                copied, run_id, number, node, first, at, clock = recorded
                save(copied, folder, run_id, number, node, first, at, clock)
            whose = place.run_id, place.round, self.node_rank, host, ranks
            save_account(folder, Account(*whose, found.account, stacks))

    def _stack(self, ending: Worker) -> str:
        """Return the stack of the worker when it was stopped, or hung."""
        return self.stacks.get(ending.assignment.worker.rank, "") or left_stack(ending)

    async def standing(self, endings: Sequence[Worker]) -> RootCause | None:
        """Return for whom workers waited that were stopped while they hung.

        Return None if they were not.
        """
        return await in_thread(partial(self._find_standing, endings)) if self.stood_still else None

    def _find_standing(self, endings: Sequence[Worker]) -> RootCause | None:
        from torshrun.failure.explanation import explain

        exits = [replace(self._exit(ending, None), stopped=True) for ending in endings]
        return explain(exits, self.stood_still, self.node_rank).finding

    async def only_follow(self, endings: Sequence[Worker], ranks: Mapping[int, int]) -> bool:
        """Return whether all workers that have failed blame others, so that one more may be
        about to fail.

        `ranks` are those of this node, by pid.
        """
        failed = [ending for ending in endings if ending.status]
        async with self._looking:
            return bool(failed) and await in_thread(partial(self._all_blame, failed, ranks))

    def _all_blame(self, failed: Sequence[Worker], ranks: Mapping[int, int]) -> bool:
        from torshrun.failure.exit_diagnosis import blamed

        exits = [self._exit(ending, None) for ending in failed]
        for exit_ in exits:
            self._look_up(exit_, ranks)
        return all(map(blamed, exits))

    def _look_up(self, exit_: Exit, ranks: Mapping[int, int]) -> None:
        """Look for a fact about a failure while the others still live.

        One of them may be its cause.
        """
        from torshrun.agent.facts import fact_about, fact_about_lock
        from torshrun.failure.exit_diagnosis import diagnose
        from torshrun.failure.last_words import last_words

        if exit_.rank not in self.facts and len(self.facts) < MOST_LOOKED_UP:
            said, noted = "\n".join(last_words(exit_).lines), exit_.ending
            fact = fact_about(diagnose(exit_).kind, said, ranks, noted.port)
            if noted.holder:
                fact = fact_about_lock(noted.held, noted.holder, ranks)
            self.facts[exit_.rank] = fact

    def _examine(
        self,
        endings: Sequence[Worker],
        oom: OomEvidence | None,
        initialised: bool,
        recorded: Recorded | None,
    ) -> Findings:
        from torshrun.failure.exit_diagnosis import diagnose
        from torshrun.failure.explanation import explain
        from torshrun.failure.exported_reports import encode
        from torshrun.failure.trails import NOTHING, Node, conclude
        from torshrun.failure.trails import encode as as_text
        from torshrun.health.recordings import read_trails

        exits = [self._exit(ending, oom) for ending in endings]
        trails, proved = None, NOTHING
        if recorded:
            copied, *_, first, at, _clock = recorded
            trails = read_trails(copied, first, at)
            proved = conclude([Node(os.uname().nodename, trails)])
        explained = explain(exits, self.hang, self.node_rank, proved)
        account = encode(explained.witnesses, self.hang, as_text(trails) if trails else "")
        testimony = account if self.tells_others else ""
        cause, finding = explained.cause, explained.finding
        if cause is None or finding is None:
            return Findings(testimony=testimony, account=account)
        kind = diagnose(cause).kind
        startup = "" if initialised else _startup(cause, kind)
        return Findings(explained, kind, startup, testimony, account)

    def _exit(self, ending: Worker, oom: OomEvidence | None) -> Exit:
        """Return how a worker ended, and what it left."""
        from torshrun.failure.exits import Exit

        place, moment = ending.assignment.worker, self.moment
        fact = self.facts.get(place.rank)
        wait, holder = moment.waits.get(place.rank, NO_WAIT) if moment else NO_WAIT
        exit_ = Exit(
            rank=place.rank,
            ranks=place.world_size,
            host=os.uname().nodename,
            pid=ending.pid,
            status=ending.status,
            seconds=ending.seconds or time.monotonic() - ending.started,
            at=ending.started + ending.seconds,
            stopped=ending.stopped or ending.alive,
            is_left=ending.alive,
            stderr=ending.streams[-1].tail or b"",
            has_stdout=len(ending.streams) == 1,
            log=ending.assignment.folder if self.output.kept(place) else "",
            program=ending.assignment.argv[0],
            peak_rss_kib=ending.peak_rss_kib,
            oom=oom,
            hung=self.hung.get(place.rank, ""),
            stack=with_sources(left_stack(ending) or self.stacks.get(place.rank, "")),
            spied=self.stacks.get(place.rank, ""),
            child=moment.children.get(place.rank, "") if moment else "",
            awaits=wait.what if wait else "",
            holder=holder,
            state=moment.states.get(place.rank, "") if moment else "",
            facts=fact.text if fact else "",
            rival=fact.rank if fact else -1,
        )
        exit_ = self._with_account(ending, self._with_standing(exit_))
        return self._with_ending(ending, exit_)

    def _with_standing(self, exit_: Exit) -> Exit:
        from torshrun.agent.standing import standing

        status = self.moment.statuses.get(exit_.rank) if self.moment else None
        return replace(exit_, standing=standing(status)) if status else exit_

    def _with_account(self, ending: Worker, exit_: Exit) -> Exit:
        """Add what the worker left in its error file, and keep that file beside its output."""
        from torshrun.failure.error_file import load_account

        path = ending.assignment.worker.error_file
        if not ending.status or not os.path.lexists(path):
            return exit_
        if self.folder:
            with contextlib.suppress(OSError):
                keep_error(path, self.folder, f"{ending.assignment.folder}/error.json")
        account = load_account(path)
        before = exit_.stopped and self.moment and ending.started < account.at <= self.moment.at
        return replace(exit_, account=account, raised=bool(before))

    def _with_ending(self, ending: Worker, exit_: Exit) -> Exit:
        """Add what the start hook noted of the worker's end."""
        from torshrun.failure.last_words import shows_usage

        noted = noted_ending(ending)
        is_left = noted.is_chosen and noted.is_own and exit_.code == noted.code
        is_left = is_left and not shows_usage(exit_)  # which tells more than what it came from
        if is_left and not ending.status:
            return replace(exit_, ending=noted)
        if not ending.status or not noted.is_watched:
            return exit_
        is_its_end = noted.is_own or exit_.code == noted.code
        if is_left or (noted.by == "exception" and is_its_end):
            before = not exit_.stopped or (self.moment and noted.at <= self.moment.at)
            path, _, line = noted.frame.rpartition(":")
            asked = conditions(path, int(line)) if line.isdecimal() else ""
            raised = exit_.raised or bool(before)
            return replace(exit_, ending=noted, raised=raised, conditions=asked)
        if noted.in_flight and noted.is_own and exit_.stopped:
            goes_on = any(is_passing_through(*place) for place in noted.places)
            return replace(exit_, ending=noted, raised=exit_.raised or goes_on)
        if noted.was_shown and noted.is_own and not exit_.stopped:
            return replace(exit_, ending=noted)
        # Of a process that it had started others tell.
        return replace(exit_, ending=replace(noted, trace="", errors=()))


async def in_thread(work: Callable[[], Result]) -> Result:
    """Do the work in a thread, and return its result.

    Examining the output of hundreds of workers takes its time, in which the keeper and the other
    nodes need heartbeats. The loop's own executor would need another thread to end.
    """
    from concurrent.futures import ThreadPoolExecutor

    executor = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work)
    except RuntimeError:  # there is no thread to be had
        return work()
    finally:
        executor.shutdown(wait=False)


def _startup(cause: Exit, kind: Kind) -> str:
    from torshrun.failure.kinds import Kind
    from torshrun.failure.likeness import fingerprint

    if cause.hung or cause.seconds > STARTUP_SECONDS or cause.signo in _FROM_OUTSIDE:
        return ""
    by_chance = kind in (Kind.ADDRESS_IN_USE, Kind.OUT_OF_MEMORY, Kind.PEER_LOST)
    return "" if by_chance else fingerprint(cause)
