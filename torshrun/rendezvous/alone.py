"""The rendezvous of a job of one node: no store, nobody to wait for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torsh_runtime.errors import TorshError
from torshrun import exit_codes
from torshrun.rendezvous.base import (
    JobOver,
    Place,
    Post,
    Rendezvous,
    Report,
    RoundClosing,
    RoundFormed,
    Sequel,
    Verdict,
)
from torshrun.rendezvous.restart import History, following, judge, pause


class Ports(NamedTuple):
    """Two ports that are free on this node now."""

    master: int
    jax: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneSettings:
    """What does not change during the job."""

    workers: int
    max_restarts: int
    """The budget."""
    backoff: float
    """Seconds before the second restart in a row; 0: every restart comes at once."""
    master_addr: str


class Alone(Rendezvous):
    """One node, which decides for itself."""

    def __init__(
        self,
        settings: AloneSettings,
        choose_ports: Callable[[], Ports],
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`choose_ports` may raise a TorshError or OSError. `chance` gives a random number,
        0 <= chance < 1, that varies the pause before a restart.
        """
        self._settings = settings
        self._choose_ports = choose_ports
        self._chance = chance
        self._post: Post = lambda event: None
        self._history = History()
        self._round = 0
        self._in_round = False
        self._left: Verdict | None = None
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, post: Post) -> None:
        self._post = post
        self._form()

    def report(self, report: Report) -> None:
        self._in_round = False
        if self._left:
            self._end(self._left)
        elif report.outcome in ("failed", "hung"):
            self._after_failure(report)
        else:
            self._end(Verdict(outcome=report.ending, code=report.code, reason=""))

    def leave(self, outcome: Literal["preempted", "stopped"], code: int, reason: str) -> None:
        self._left = Verdict(outcome=outcome, code=code, reason=reason)
        if not self._in_round:
            self._end(self._left)

    async def close(self) -> None:
        self._cancel()

    def _form(self) -> None:
        try:
            ports = self._choose_ports()
        except (OSError, TorshError) as error:
            reason = f"cannot start the workers: {error}"
            self._end(Verdict(outcome="lost", code=exit_codes.LOST, reason=reason))
            return
        self._in_round = True
        self._post(RoundFormed(self._place(ports)))

    def _place(self, ports: Ports) -> Place:
        return Place(
            round=self._round,
            restarts=self._history.restarts,
            node_rank=0,
            num_nodes=1,
            first_rank=0,
            world_size=self._settings.workers,
            master_addr=self._settings.master_addr,
            master_port=ports.master,
            jax_port=ports.jax,
            store_endpoint="",
        )

    def _after_failure(self, report: Report) -> None:
        settings = self._settings
        sequel = judge(settings.max_restarts, self._history, report.startup)
        if sequel != "restart":
            self._end(_verdict(report, sequel))
            return
        self._history = following(self._history, report.startup, report.seconds)
        delay = pause(settings.backoff, self._history, self._chance())
        self._post(
            RoundClosing(
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

    def _end(self, verdict: Verdict) -> None:
        self._cancel()
        if not self._over:
            self._over = True
            self._post(JobOver(verdict))

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _verdict(report: Report, sequel: Sequel) -> Verdict:
    code = exit_codes.BUDGET_SPENT if sequel == "budget spent" else report.code
    return Verdict(outcome=report.ending, code=code, reason=report.cause, sequel=sequel)
