"""The rendezvous of a job of one node: no store, nobody to wait for."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from torsh_runtime.errors import TorshError
from torshrun import exit_codes
from torshrun.config.job import LaunchConfig
from torshrun.rendezvous import base
from torshrun.rendezvous.ports import HeldPorts
from torshrun.rendezvous.restart import History, following, judge, pause

if TYPE_CHECKING:  # at the start it would take time
    from torshrun.health.clocks import CommonClock


@dataclass(eq=False)
class Alone(base.Rendezvous):
    """Forms the rounds of a job that has a single node."""

    config: LaunchConfig
    ports: HeldPorts = field(default_factory=HeldPorts)
    chance: Callable[[], float] = random.random
    """Gives a number, 0 <= chance < 1, that varies the pause before a restart."""

    def __post_init__(self) -> None:
        self._post: base.Post = lambda event: None
        self._history = History()
        self._taken = (0, 0)
        self._round = 0
        self._in_round = False
        self._left: base.Verdict | None = None
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, post: base.Post) -> None:
        self._post = post
        self._form()

    def report(self, report: base.Report) -> None:
        self._in_round = False
        if self._left:
            self._end(self._left)
        elif report.outcome in ("failed", "hung"):
            self._after_failure(report)
        else:
            self._end(base.Verdict(outcome=report.ending, code=report.code, reason=""))

    def note_lasting(self, lasting: base.Lasting) -> None:
        """Ignore it: there are no other nodes."""

    def mend(self, number: int, standing: base.Standing, seconds: float, lost: bool) -> None:
        if standing == "parked" and number == self._round:
            self._history = following(self._history, "", seconds)
            self._round += 1
            self._begin(base.RoundMended)

    def leave(self, outcome: Literal["preempted", "stopped"], code: int, reason: str) -> None:
        self._left = base.Verdict(outcome=outcome, code=code, reason=reason)
        if not self._in_round:
            self._end(self._left)

    async def close(self) -> None:
        self._cancel()
        self.ports.release()

    def _form(self) -> None:
        self._begin(base.RoundFormed)

    def _begin(self, kind: type[base.RoundFormed | base.RoundMended]) -> None:
        try:
            place = self._place(is_mended=kind is base.RoundMended)
        except (OSError, TorshError) as error:
            reason = f"cannot start the workers: {error}"
            self._end(base.Verdict(outcome="lost", code=exit_codes.LOST, reason=reason))
            return
        self._in_round = True
        self._post(kind(place))

    def _place(self, *, is_mended: bool) -> base.NodeAssignment:
        # Rank 0 may have kept its process, and still serve on the port that was given.
        if not (is_mended and self.config.master_port):
            self._taken = self.ports.take(self.config.master_port)
        port, jax_port = self._taken
        return base.NodeAssignment(
            round=self._round,
            restarts=self._history.restarts,
            node_rank=0,
            num_nodes=1,
            first_rank=0,
            world_size=self.config.nproc_per_node,
            master_addr=self.config.master_addr,
            master_port=port,
            jax_port=jax_port,
        )

    def _after_failure(self, report: base.Report) -> None:
        sequel = judge(self.config.max_restarts, self._history, report.startup)
        if sequel != "restart":
            code = exit_codes.BUDGET_SPENT if sequel == "budget spent" else report.code
            ending, reason = report.ending, report.cause
            self._end(base.Verdict(outcome=ending, code=code, reason=reason, sequel=sequel))
            return
        self._history = following(self._history, report.startup, report.seconds)
        delay = pause(self.config.restart_backoff, self._history, self.chance())
        self._post(
            base.RoundClosing(
                round=self._round,
                reason=report.cause,
                failed=True,
                restarts=self._history.restarts,
                delay=delay,
            )
        )
        self._round += 1
        if delay:
            self._timer = asyncio.get_running_loop().call_later(delay, self._form)
        else:
            self._form()

    def note_standbys(self, count: int) -> None:
        """Ignore the number: nobody else looks at it."""

    def common_clock(self, at: float) -> CommonClock:
        from torshrun.health.clocks import SAME, CommonClock

        return CommonClock(os.uname().nodename, SAME)

    def tell_leader(self, summary: bytes) -> None:
        told = {os.uname().nodename: base.check_summary(summary)}
        if not self._over:
            self._post(base.Summaries(told))

    def replace(self, node: str) -> bool:
        return False

    async def answer(self, asked: base.Asked, answer: base.Answer) -> None:
        """Ignore the answer: nobody can ask."""

    def _end(self, verdict: base.Verdict) -> None:
        self._cancel()
        if not self._over:
            self._over = True
            self._post(base.JobOver(verdict))

    def _cancel(self) -> None:
        if self._timer:
            self._timer.cancel()
