"""Announces what the agent does: lines for people on stderr, and events for programs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torsh_runtime.events import Event
from torshrun import exit_codes
from torshrun.agent import machine, protocol
from torshrun.agent.announcement_texts import (
    dead_man,
    end_of,
    in_time,
    keeper_death,
    lost_nodes,
    outlook,
    unfit,
    unkillable,
)
from torshrun.agent.diagnosis import Findings
from torshrun.agent.emitter import Emitter
from torshrun.config.job import LaunchConfig
from torshrun.rendezvous.base import JobOver, NodeAssignment, RoundClosing, RoundOver, Verdict
from torshrun.signals import signal_name
from torshrun.text import printable
from torshrun.workers.keeper import Keeper
from torshrun.workers.worker import Worker

if TYPE_CHECKING:
    from torshrun.failure.exits import Exit
    from torshrun.failure.kinds import Kind
    from torshrun.failure.root_cause import Certainty, RootCause
    from torshrun.health.detector import Hang
    from torshrun.health.stacks import Stacks

COMPLAINTS = 60.0
"""Seconds between two complaints of the same kind, at least."""


class Announcer(Emitter):
    """Puts what happens, as its methods are called, into words. `say` takes whole lines."""

    def __init__(
        self,
        config: LaunchConfig,
        say: Callable[[str], None],
        record: Callable[[Event], object] | None,
        keep: Callable[[RootCause], None] = lambda _: None,
    ) -> None:
        """Begin; without `record` there are no events. `keep` takes root causes of whole rounds."""
        super().__init__(config, say, record)
        self._keep = keep
        self._num_nodes, self._departed = 1, 0
        self._began = time.monotonic()
        self._sequel = ""
        self._lost: set[str] = set()
        self._complained = -COMPLAINTS
        self._was_in_round = self._has_found = False
        self._no_start = ""
        self._own_finding: RootCause | None = None

    def job_started(self, log_dir: str) -> None:
        """Announce that the agent is about to begin; `log_dir` is "" if no output is kept."""
        if log_dir and self._config.output.log_dir is None:
            self.say(f"output is kept in {log_dir}")
        if self._config.events is None:
            return
        from importlib.metadata import version

        self.emit(
            "job_started",
            version=version("torshrun"),
            host=os.uname().nodename,
            agent_pid=os.getpid(),
            target=self._config.target,
            role=self._config.role,
            workers=self._config.nproc_per_node,
            max_restarts=self._config.max_restarts,
            log_dir=log_dir,
        )

    def job_finished(self, end: machine.Finished) -> None:
        """Announce that the agent has ended everything. Later events are not recorded."""
        self.emit(
            "job_finished",
            code=end.code,
            outcome=end.outcome,
            reason=self._sequel,
            seconds=time.monotonic() - self._began,
            restarts=end.attempt.restarts,
        )
        self._record = None

    # ---- the other nodes

    def begin_round(self, place: NodeAssignment) -> None:
        self.round, self._was_in_round, self._has_found = place.round, True, False
        self._own_finding = None
        self._node_rank, self._num_nodes = place.node_rank, place.num_nodes
        self._departed = place.departed
        if not self._config.is_alone:
            self.say(
                f"round {place.round}: node {place.node_rank} of {place.num_nodes}, "
                f"{place.world_size} workers in all"
            )

    def standing_by(self, reason: str) -> None:
        self.say(printable(reason))
        self.emit("standing_by", reason=reason)

    def decided(self, event: RoundClosing | JobOver) -> None:
        alone = self._config.is_alone
        if isinstance(event, JobOver):
            verdict = event.verdict
            self.found_by_all(verdict.finding)
            self._blame_no_rank(verdict)
            if not alone:
                self._sequel = verdict.sequel
                self.say(f"the job is over ({verdict.outcome}): {printable(verdict.reason)}")
                if verdict.outcome == "succeeded" and not self._was_in_round:
                    self.say("no worker has run on this node: it was a spare until the end")
                if verdict.outcome == "succeeded" and self._departed:
                    self.say(lost_nodes(self._departed, self._departed + self._num_nodes))
            elif verdict.outcome == "lost" and verdict.reason:
                self.start_failed(verdict.reason)
        elif not alone:
            self.say(f"round {event.round} ends: {printable(event.reason)}")
            self.emit("round_closing", reason=event.reason, failed=event.failed)

    def round_over(self, event: RoundOver) -> None:
        """Announce that workers leave the round as others are lost, leave or come."""
        how = "ends at the next commit" if event.at_commit else "is over"
        self.say(f"round {event.round} {how}: {printable(event.reason)}; the others continue")

    def unfit(self, told: protocol.TellUnfit) -> None:
        """Announce what follows from replacements that fail before they join. Why they do was
        reported when the first one failed."""
        self.say(unfit(told))
        self._has_found |= told.leaves

    # ---- what goes on

    def round_started(self, place: NodeAssignment) -> None:
        self.emit(
            "round_started",
            restarts=place.restarts,
            world_size=place.world_size,
            master_addr=place.master_addr,
            master_port=place.master_port,
        )

    def start_failed(self, reason: str) -> None:
        self._no_start = reason
        self.say(f"error: {reason}")
        self.emit("start_failed", reason=reason)

    def gpus_broken(self, reason: str) -> None:
        """Announce after a failure that no workers can run here any more."""
        self.say(f"error: {printable(reason)}")
        self.emit("start_failed", reason=reason)

    def noticed(self, signo: int, passed_on: bool) -> None:
        self.emit("notice", signal=signal_name(signo))
        what = "passing it on to the workers" if passed_on else "no worker runs to pass it on to"
        if self._config.signals_reach_workers:
            what = "the scheduler has sent it to the workers too"
        self.say(f"got {signal_name(signo)}: {what}")

    def end_near(self, left: float) -> None:
        """Announce that `left` seconds of the job's time are left."""
        self.emit("end_near", seconds_left=left)
        self.say(f"{left:.0f} s of the job's time are left: SIGUSR1 to the workers that handle it")

    def hung(self, hang: Hang, stacks: Stacks) -> str:
        """Announce that workers make no progress, and return that in a line.

        `stacks` are by rank.
        """
        from torshrun.health.report import describe, summary

        text = describe(hang, stacks.texts, stacks.hint)
        self.say(text)
        self._hang_detected(hang, text)
        return summary(hang)

    def _hang_detected(self, hang: Hang, text: str) -> None:
        ranks = [state.sample.rank for state in hang.ranks if state.sample.alive]
        facts = {"ranks": ranks, "suspect": hang.suspect, "seconds": hang.seconds}
        self.emit("hang_detected", **facts, text=text)

    def stood_still(self, hang: Hang) -> str:
        """Announce that the workers being stopped made no progress, and return that in a line."""
        from torshrun.health.report import describe, summary

        text = describe(hang, {})
        self.say(f"when the signal came: {text}")
        self._hang_detected(hang, text)
        return summary(hang)

    def where_they_stood(self, finding: RootCause | None) -> None:
        """Announce where workers stood that have been stopped since."""
        if finding:
            from torshrun.failure.report import describe_standing

            self._say(describe_standing(finding))

    def worker_exited(self, worker: Worker) -> None:
        end = end_of(worker.rank, worker.pid, worker.status, worker.seconds)
        more = {"peak_rss_bytes": worker.peak_rss_kib * 1024, "stopped": worker.stopped}
        self.emit("worker_exited", **end, **more)

    def stopping(self, stop: protocol.StopWorkers, alive: Sequence[int], last_signal: int) -> None:
        """Announce that workers are being stopped.

        `last_signal` is the signal that asked for the stop; 0 if none did.
        """
        if stop.cause == "done":
            return
        if stop.cause == "signal":
            name = signal_name(last_signal)
            another = "another " if last_signal == signal.SIGINT else ""
            hint = f"; {another}SIGINT (Ctrl-C) kills them at once" if stop.grace else ""
            self.say(f"got {name}: ending {in_time(stop, alive)}{hint}")
        if stop.cause == "dead man":
            self._tell_dead_man()
        facts = {"cause": stop.cause, "grace_seconds": stop.grace, "ranks": list(alive)}
        name = signal_name(stop.signo) if stop.signo else ""
        self.emit("workers_stopping", signal=name, **facts)

    def stopping_others(
        self, stop: protocol.StopWorkers, alive: Sequence[int], cause: Exit | None
    ) -> None:
        """Announce that workers have been asked to stop; `cause` is the failure that led to it."""
        if cause and not stop.signo:  # which is no failure, and no reason to interrupt anybody
            self.say(f"rank {cause.rank} has made room: the other {in_time(stop, alive)} may too")
            return
        from torshrun.failure.exits import how

        who = f"rank {cause.rank} failed ({how(cause)}): " if cause else ""
        self.say(f"{who}stopping the other {in_time(stop, alive)}")

    def output_lost(self, lost: Mapping[str, str]) -> None:
        """Announce once which of stdout and stderr cannot be written any more, and why."""
        for stream in lost.keys() - self._lost:
            self._lost.add(stream)
            self.emit("output_lost", stream=stream, reason=lost[stream])

    def _tell_dead_man(self) -> None:
        others = self._config.rendezvous
        timeout = others.ttl if others else self._config.agent_timeout
        self.say(dead_man(timeout, is_alone=others is None))
        self.emit("dead_man_fired", timeout_seconds=timeout)
        if others is None:
            from torshrun.failure.kinds import Kind

            self.found_of_job("torshrun itself gave no sign of life", Kind.AGENT)

    def standbys_ready(self, count: int, modules: Sequence[str]) -> None:
        """Announce that `count` workers are ready for a restart, with these modules."""
        self.emit("standbys_ready", count=count, modules=list(modules))

    def no_standbys(self, reason: str) -> None:
        """Announce that workers will start without standbys, or with fewer."""
        self.emit("standbys_missing", reason=reason)
        self.say(f"standbys: {printable(reason)}")

    def out_of_descriptors(self, error: OSError) -> None:
        """Announce that a connection from elsewhere could not be accepted.

        There may be many more of them: at most one message is written every COMPLAINTS seconds.
        """
        now = time.monotonic()
        if now - self._complained >= COMPLAINTS:
            self._complained = now
            self.say(
                f"error: connections cannot be taken: {error.strerror}. Raise the limit "
                f"(ulimit -n), or see who opens so many to this host"
            )

    def keeper_lost(self, keeper: Keeper, left: Sequence[object]) -> None:
        """Announce that the keeper died.

        `left` are processes that could not be killed without it.
        """
        self.say(f"error: {keeper_death(keeper, left)}")
        self.emit("keeper_lost", pid=keeper.pid)
        from torshrun.failure.kinds import Kind

        self.found_of_job(f"the keeper {keeper.given_up or 'has died'}", Kind.AGENT)

    def round_ended(self, cause: protocol.Cause, over: protocol.Diagnosed) -> None:
        report, left = over.report, list(over.unkillable)
        self.emit(
            "round_ended", cause=cause, code=report.code, seconds=report.seconds, unkillable=left
        )

    # ---- failures

    def failed(self, report: protocol.ReportFailure, found: Findings) -> None:
        from torshrun.failure.report import describe

        sequel, cause = report.sequel, found.cause
        self._sequel = "" if sequel in ("restart", "replace", "undecided") else sequel
        if report.unkillable:
            self.say(unkillable(report.unkillable))
        alone = self._config.is_alone
        follows = outlook(report, self._config.max_restarts, self._config.recover)
        knows_all = alone or sequel == "replace"
        text = describe(found.explained, follows, is_partial=not knows_all)
        self._say(text)
        if cause is not None:
            end = end_of(cause.rank, cause.pid, cause.status, cause.seconds)
            if cause.raised:  # whoever stopped it after that
                end |= {"code": cause.code, "signal": ""}
            more = {"host": cause.host, "kind": found.kind, "summary": found.summary}
            self.emit("worker_failed", **end, **more, log=cause.log)
            self._tell_above(cause, report, text)
        self._own_finding = found.finding
        if found.finding and knows_all:
            self.found(found.finding)
        if sequel in ("restart", "replace"):
            left = self._config.max_restarts - report.restarts - 1
            delay, reason = report.delay, found.summary
            self.emit("restart_scheduled", delay_seconds=delay, left=left, reason=reason)

    def replaced(self, number: int, report: protocol.ReportFailure, found: Findings) -> None:
        """Report a failure in round `number`, which is over while the job is in a later one."""
        present = self.round, self._has_found, self._own_finding
        self.round = number
        self.failed(report, found)
        self.round = present[0]
        if report.sequel == "replace":  # else it is the finding of the job's end
            self._has_found, self._own_finding = present[1:]

    def found_by_all(self, text: str) -> None:
        """Announce the root cause that the leader found in all nodes' reports; "" is none."""
        if not text:
            return
        from torshrun.failure.exported_reports import decode_finding
        from torshrun.failure.report import describe_finding

        finding = decode_finding(text)
        if finding is not None:
            whole = self._node_rank == 0 or self._node_rank in finding.nodes or self._num_nodes <= 4
            self._say(describe_finding(finding, whole))
            self.found(finding)

    def _blame_no_rank(self, verdict: Verdict) -> None:
        """Announce the root cause of a job that ended for a reason that is not a worker's."""
        reason = verdict.reason or self._no_start
        if self._has_found or not reason:
            return
        if self._own_finding and verdict.outcome in ("failed", "hung", "lost"):
            self._conclude_alone(self._own_finding)
            return
        from torshrun.failure.kinds import Kind

        if self._no_start:
            self.found_of_job(self._no_start, Kind.EXCEPTION)
        elif verdict.outcome == "lost":
            self.found_of_job(reason, Kind.STORE)
        elif verdict.code == exit_codes.RENDEZVOUS:
            self.found_of_job(reason, Kind.MISSING)

    def _conclude_alone(self, finding: RootCause) -> None:
        """Announce what was found here as the root cause, as nothing came from other nodes."""
        from torshrun.failure.report import describe_finding

        sure = finding.certainty
        finding = replace(finding, certainty="likely" if sure == "certain" else sure)
        self.say("what other nodes know is not to be had; by what is known here:")
        self._say(describe_finding(finding, whole=True))
        self.found(finding)

    def found_of_job(self, reason: str, kind: Kind) -> None:
        """Announce as the root cause a failure of the job itself, or of what it depends on."""
        from torshrun.failure.recognition import diagnose_job
        from torshrun.failure.root_cause import RootCause

        # What a node that was in a round is cut off from, others may know better.
        certainty: Certainty = "likely" if self._was_in_round else "certain"
        finding = RootCause(certainty=certainty, reading=diagnose_job(printable(reason), kind))
        if finding.reading.advice:
            self.say(f"what to do: {finding.reading.advice}")
        self.found(finding)

    def found(self, finding: RootCause) -> None:
        """Announce and keep the root cause of the whole job's round."""
        self._has_found = True
        self._keep(finding)
        self.emit(
            "root_cause",
            ranks=finding.ranks,
            nodes=finding.nodes,
            certainty=finding.certainty,
            kind=finding.reading.kind,
            hint=finding.reading.hint,
            summary=finding.headline,
            evidence=finding.evidence,
        )
