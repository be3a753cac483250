"""Starts a job on its hosts, passes signals on, and returns the job's exit code."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version

from torshrun import exit_codes
from torshrun.config.job import Address, OutputConfig
from torshrun.signals import NOTICES, signal_name
from torshrun.ssh import frames
from torshrun.ssh.link import HostLost, Link, ip_or_empty
from torshrun.ssh.plan import HostsJob
from torshrun.ssh.verdict import Ended, code_of, code_of_signal, follows
from torshrun.workers.logs.pump import LogPump

AT_ONCE = 10
"""The most hosts that are being connected to at a time.

OpenSSH's sshd, and so a jump host, begins to refuse connections at that number (MaxStartups).
"""
OTHERS = 3.0
"""Seconds that other hosts have to fail after the first one, so that all are named together."""
END_BOUND = 45.0
"""Seconds that hosts may take to end beyond the grace period of their workers."""
READER_STALL = 30.0
"""Seconds that the last output waits for a stalled reader. 1 s after a stop request."""
INSISTING = 3
"""The number of SIGINTs after which hosts are left to end on their own."""


def launch(job: HostsJob) -> int:
    """Run the job on its hosts and return its exit code."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # each host needs ten descriptors
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return asyncio.run(_run(job))


async def _run(job: HostsJob) -> int:
    pump = LogPump(OutputConfig(status_line="never"), None)
    run = _Run(job, pump)
    code = await run.run()
    if not await pump.finish(pump.close, lambda: 1.0 if run.signals else READER_STALL):
        pump.give_up()
    return code


@dataclass(eq=False)
class _Run:
    job: HostsJob
    pump: LogPump
    signals: list[int] = field(default_factory=list)
    """The signals that asked for the job's end, in order."""
    _planned: float = field(default_factory=time.monotonic)
    _links: list[Link] = field(default_factory=list)
    _running: dict[Link, asyncio.Task[None]] = field(default_factory=dict)
    _endings: list[Ended] = field(default_factory=list)
    _stopped: int | None = None
    _starting: asyncio.Task[list[Link]] | None = None

    async def run(self) -> int:
        job, loop = self.job, asyncio.get_running_loop()
        self._links = [
            Link(host=host, command=job.command(host), silence=job.silence, pump=self.pump)
            for host in job.hosts
        ]
        for signo in {*job.config.signals_to_handle, *NOTICES}:
            if signal.getsignal(signo) is not signal.SIG_IGN:
                loop.add_signal_handler(signo, self._on_signal, signo)
        beating = asyncio.create_task(self._beat())
        try:
            return await self._work()
        finally:
            beating.cancel()
            await asyncio.gather(*(link.close() for link in self._links))

    async def _work(self) -> int:
        self._starting = asyncio.create_task(self._start())
        try:
            nodes = await self._starting
        except HostLost as error:
            self._say(f"error: {error}")
            return exit_codes.RENDEZVOUS
        except asyncio.CancelledError:
            if not self.signals:
                raise
            self._say(f"got {signal_name(self.signals[0])} before the job began")
            return code_of_signal(self.signals[0])
        self._running = {link: asyncio.create_task(self._follow(link)) for link in nodes}
        for signo in self.signals:  # signals that came since the start
            self._pass_on(signo)
        # A bug in this code must not leave the other hosts waiting.
        done, _ = await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        return code_of(self._endings, self._stopped, next(iter(self.signals), 0))

    # ---- the start

    async def _start(self) -> list[Link]:
        """Return the hosts on which the job was started, in the order of their ranks.

        Raises HostLost.
        """
        nodes = await self._open_all()
        endpoint = await self._meet(nodes) if self.job.meets_at_node_0 else None
        hosts = [link.host for link in nodes]
        for rank, link in enumerate(nodes):
            told = self.job.told(rank, hosts, endpoint, time.monotonic() - self._planned)
            told["one_output"] = self.pump.is_one
            link.send(frames.message(frames.JOB, told))
        return nodes

    async def _open_all(self) -> list[Link]:
        """Return the hosts that could be connected to. Raises HostLost if they are too few."""
        turn, failed = asyncio.Semaphore(AT_ONCE), asyncio.Event()
        here = version("torshrun")

        async def open_one(link: Link) -> None:
            async with turn:
                try:
                    await link.open(here, self.job.start_timeout)
                except Exception:
                    link.kill()
                    failed.set()
                    raise

        opening = {link: asyncio.create_task(open_one(link)) for link in self._links}
        try:
            await self._until_enough_failed(list(opening.values()), failed)
        finally:
            for task in opening.values():
                task.cancel()
            await asyncio.wait(opening.values())
        opened = [link for link, task in opening.items() if not _reason(task)]
        for link, task in opening.items():
            if (why := _reason(task)) and not task.cancelled():
                self._say(f"{link.host.label} could not be started: {why}")
        if len(opened) < self.job.nodes.fewest:
            raise HostLost(self._too_few(len(opened)))
        return opened

    async def _until_enough_failed(
        self, opening: Sequence[asyncio.Task[None]], failed: asyncio.Event
    ) -> None:
        """Wait until each host has been connected to or has failed.

        Returns sooner after a failure if the job needs all of them.
        """
        whole = asyncio.ensure_future(asyncio.wait(opening))
        failing = asyncio.create_task(failed.wait())
        try:
            await asyncio.wait((whole, failing), return_when=asyncio.FIRST_COMPLETED)
            strict = self.job.nodes.fewest >= len(opening)
            await asyncio.wait((whole,), timeout=OTHERS if strict else None)
        finally:
            whole.cancel()
            failing.cancel()

    def _too_few(self, opened: int) -> str:
        needed = self.job.nodes.fewest
        return (
            f"the job needs {needed} host{'s' if needed > 1 else ''}, and not all could be "
            f"started ({opened} answered): nothing has run. Leave hosts out by --exclude, or give "
            f"--nnodes MIN:MAX for a job that may run with fewer"
        )

    async def _meet(self, nodes: Sequence[Link]) -> Address:
        """Ask the first node where the nodes are to rendezvous."""
        first, *others = nodes
        peers = [link.address for link in others if link.address]
        asked = {"peers": peers, "port": self.job.port}
        try:
            async with asyncio.timeout(self.job.start_timeout):
                facts = await first.ask(frames.message(frames.MEET, asked), frames.ENDPOINT)
        except (HostLost, TimeoutError) as error:
            why = str(error) or f"no answer within {self.job.start_timeout:g} s"
            raise HostLost(f"{first.host.label} cannot serve the job: {why}") from None
        host, port = ip_or_empty(facts.get("host")), facts.get("port")
        if not host or type(port) is not int or not 0 < port < 65536:
            raise HostLost(f"{first.host.label} does not speak torshrun's protocol")
        return Address(host, port)

    # ---- while it runs

    async def _beat(self) -> None:
        """Send signs of life to all hosts."""
        while True:
            await asyncio.sleep(self.job.silence / 3)
            for link in self._links:
                link.send(frames.frame(frames.BEAT))

    async def _follow(self, link: Link) -> None:
        label = link.host.label
        try:
            ended = await link.follow()
        except HostLost as error:
            ended = Ended(label, None, True, str(error))
        self._endings.append(ended)
        del self._running[link]
        if ended.code is None:
            self._say(f"{label} is lost: {ended.why}")
        elif not ended.begun:
            self._say(f"{label} could not begin (exit code {ended.code}); it says why above")
        self._consider(ended)

    def _consider(self, ended: Ended) -> None:
        """Decide what follows for the other hosts."""
        running, fewest = len(self._running), self.job.nodes.fewest
        next_step = follows(self._endings, running, fewest)
        if next_step == "wait":
            self._later(self._stop_others, exit_codes.LOST)
        elif next_step == "stop" and self._stopped is None and not self.signals:
            self._say(f"the job needs {fewest} hosts: stopping the other {running}")
            self._stop_others(exit_codes.LOST if ended.code is None else ended.code)

    def _stop_others(self, code: int) -> None:
        if self._stopped is None and self._running:
            self._stopped = code
            self._pass_on(self.job.stop_signal)
            self._later(self._give_up)

    def _give_up(self) -> None:
        """Leave hosts to themselves. Without a connection they end."""
        if self._running:
            names = ", ".join(link.host.label for link in self._running)
            self._say(f"these hosts are left to end on their own: {names}")
        for link in self._running:
            link.kill()

    def _later(self, act: Callable[..., object], *arguments: object) -> None:
        bound = self.job.config.shutdown_timeout + END_BOUND
        asyncio.get_running_loop().call_later(bound, act, *arguments)

    def _on_signal(self, signo: int) -> None:
        is_stop = signo in self.job.config.signals_to_handle
        if is_stop:
            self.signals.append(signo)
        if self._running:
            self._pass_on(signo)
        elif is_stop and self._starting:
            self._starting.cancel()
        if is_stop and self._running:
            self._later(self._give_up)
            if self.signals.count(signal.SIGINT) == INSISTING:
                self._give_up()

    def _pass_on(self, signo: int) -> None:
        for link in self._running:
            link.send(frames.frame(frames.SIGNAL, bytes([signo])))

    def _say(self, text: str) -> None:
        self.pump.say(f"torshrun: {text}")


def _reason(task: asyncio.Task[None]) -> str:
    """Return why a host could not be connected to, or "" if it could."""
    if task.cancelled():
        return "others had failed before it answered"
    error = task.exception()
    if error is not None and not isinstance(error, HostLost):
        raise error
    return str(error) if error else ""
