"""Looks for slow ranks if --straggler-threshold or the script asks for it, and reports them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torshrun.agent.announcer import Announcer
from torshrun.agent.round import Round
from torshrun.config.job import LaunchConfig
from torshrun.rendezvous.base import NodeAssignment, Rendezvous, Summaries
from torshrun.workers.group import WorkerGroup

if TYPE_CHECKING:  # at the start it would take time
    from torsh_runtime.monitoring.findings import Finding
    from torsh_runtime.monitoring.wishes import Wish
    from torshrun.agent.stragglers import StragglerMonitor
    from torshrun.health.gpu_health import GpuReading
    from torshrun.live.notifier import Notifier


@dataclass(eq=False)
class Slowness:
    """Costs next to nothing until it is asked for. All methods belong to the loop's thread."""

    config: LaunchConfig
    group: WorkerGroup
    rendezvous: Rendezvous
    tell: Announcer
    read_gpus: Callable[[], Sequence[GpuReading]]

    def __post_init__(self) -> None:
        self._round: Round | None = None
        self._place: NodeAssignment | None = None
        self._monitor: StragglerMonitor | None = None
        self._notifier: Notifier | None = None
        self._wish: Wish | None = None
        self._tells = True
        self._found_file = ""
        self._told: Mapping[str, bytes] = {}

    def place(self, place: NodeAssignment) -> None:
        """Begin a round, in which this node has that place."""
        self._place = place

    def start(self, a_round: Round) -> None:
        """Begin to look, now that all workers of the round run."""
        self._round = a_round
        if self.config.straggler_threshold:
            from torsh_runtime.monitoring.wishes import Wish

            self._begin(Wish(0.0, {}, self.config.replace_stragglers, tells=True))

    def tick(self) -> None:
        """Check, about once a second, whether workers have asked for it."""
        if self._round is None or not (names := self._round.recordings.new_names()):
            return
        from torsh_runtime.monitoring.wishes import wish_in

        wish = wish_in(names)
        if wish and wish != self._wish:  # else only a section has a name that is new
            self._wish = wish
            self._tells = wish.tells or self.config.straggler_threshold > 0
            self._open_found_file(self._round)
            self._begin(wish._replace(replaces=wish.replaces or self.config.replace_stragglers))

    def stop(self) -> None:
        """Stop: the round's workers are about to end."""
        self._round, self._wish, self._found_file = None, None, ""
        if self._monitor:
            self._monitor.stop()
            self._monitor = None

    def judge(self, told: Summaries) -> None:
        """Judge the summaries that the agents of all nodes have sent to this one, which leads."""
        self._told = told.by_node
        if self._monitor:
            self._monitor.judge(told.by_node)

    def close(self) -> None:
        """End what still runs, within bounded time."""
        self.stop()
        if self._notifier:
            self._notifier.close()

    def _begin(self, wish: Wish) -> None:
        from torshrun.agent.stragglers import StragglerMonitor

        if self._monitor:
            self._monitor.stop()
        place, others = self._place, self.config.rendezvous
        if self._round is None or place is None:
            return
        self._monitor = StragglerMonitor(
            group=self.group,
            wish=wish,
            threshold=self.config.straggler_threshold,
            num_nodes=place.num_nodes,
            between=others.ttl / 4 if others else 0.0,
            tell_leader=self.rendezvous.tell_leader,
            replace=self.rendezvous.replace,
            announce=self._announce,
            read_gpus=self.read_gpus,
            known=self._told,
        )
        self._monitor.start(self._round, place.node_rank)

    # ---- what is found

    def _announce(self, finding: Finding, sequel: str) -> None:
        name, facts = finding.event(sequel)
        self._write(name, facts)
        if not self._tells:
            return
        self.tell.say(facts["text"])
        event = self.tell.emit(name, **facts)
        if self.config.notify:
            if self._notifier is None:
                from torshrun.live.notifier import Notifier

                self._notifier = Notifier(self.config.notify, self.tell.say)
            self._notifier.notify(event)

    def _open_found_file(self, a_round: Round) -> None:
        """Open the file for the workers that want to be called back."""
        from torsh_runtime.monitoring.wishes import found_file

        self._found_file = found_file(a_round.pages.path)

    def _write(self, name: str, facts: dict[str, Any]) -> None:
        if not self._found_file or not self._tells:
            return
        line = json.dumps({"event": name, "facts": facts}).encode() + b"\n"
        flags = (
            os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        )
        try:
            descriptor = os.open(self._found_file, flags, 0o600)
        except OSError:
            return
        try:
            os.write(descriptor, line)
        except OSError:
            pass
        finally:
            os.close(descriptor)
