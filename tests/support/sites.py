"""Sites: hosts with an etcd beside them and a job across them, whose workers keep diaries.

A host dies as a whole, without a word on its links; links are cut and healed; etcd has a host of
its own. What ran when is read from the diaries, which are of one machine's monotonic clock.
"""

from __future__ import annotations

import base64
import ctypes
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from support.etcd_servers import EtcdCluster, EtcdServer, binary_or_skip
from support.hosts import Host, cut_off, plug_in_again, plugged
from support.launcher import Launcher
from support.nodes import Job, Node
from support.processes import marked, soon

from torsh_runtime.store.base import Entry
from torsh_runtime.store.signed import sign, verified
from torshrun.rendezvous import rows
from torshrun.rendezvous.epoch import Epoch, read_epoch

PATIENCE = 45.0
"""Seconds after which what does not happen counts as not happening."""
TTL = 2.0
"""Seconds."""
CONF = f"last_call_timeout=0.5,ttl={TTL},join_timeout=30,close_timeout=5"
SETTLE = TTL / 2
"""Seconds after which all agents of a round have heard of each other."""
_RUN_ID = "site"
_WORKER = """
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
host, pace = os.environ["SITE_HOST"], float(sys.argv[1])
place = (os.environ["TORSH_ROUND"], rank, os.environ["WORLD_SIZE"], host, os.getpid())
diary = os.open("diaries/" + ".".join(map(str, place)), os.O_WRONLY | os.O_CREAT)
while not os.path.exists("go"):
    moment = time.monotonic()
    os.write(diary, b"%.6f\\n" % moment)
    print("step", f"{moment:.6f}", flush=True)
    time.sleep(pace)
"""


class Life(NamedTuple):
    """Of one worker, from its first step to its last; seconds of the monotonic clock."""

    round: int
    rank: int
    world: int
    host: int
    pid: int
    steps: tuple[float, ...]

    @property
    def first(self) -> float:
        return self.steps[0]

    @property
    def last(self) -> float:
        return self.steps[-1]

    def pause(self, after: float, until: float) -> float:
        """The longest time without a step in this span; all of it if there was none."""
        inside = [after, *(step for step in self.steps if after < step < until), until]
        return max(late - early for early, late in pairwise(inside))


def overlaps(lives: Sequence[Life]) -> list[str]:
    """Where workers of two rounds ran at the same time, and ranks that were there twice."""
    found, rounds = [], by_round(lives)
    for number, members in rounds.items():
        ranks = sorted(life.rank for life in members)
        if len({life.world for life in members}) > 1 or len(set(ranks)) < len(ranks):
            found.append(f"round {number} has ranks {ranks}")
    ends = {number: max(life.last for life in members) for number, members in rounds.items()}
    for number, members in rounds.items():
        start = min(life.first for life in members)
        late = max((ends[other] for other in rounds if other < number), default=start)
        if late > start:
            found.append(f"round {number} began {late - start:.3f} s before others had ended")
    return found


def by_round(lives: Sequence[Life]) -> dict[int, list[Life]]:
    found = defaultdict(list)
    for life in lives:
        found[life.round].append(life)
    return found


class Site:
    """A job whose nodes run on hosts of their own, a worker each. Made by `site`."""

    def __init__(
        self,
        launcher: Launcher,
        hosts: Sequence[Host],
        far: Host,
        etcd: EtcdCluster,
        job: Job,
        program: Sequence[str],
    ) -> None:
        """`far` is the host that etcd is on, `program` what the workers run."""
        self.hosts, self.etcd, self.folder = hosts, etcd, launcher.folder
        self.nodes: dict[int, Node] = {}
        """The agent that was started last on each host that is not dead, by the host's number."""
        self._far, self._job, self._program, self._mark = far, job, program, launcher.mark
        self._homes: list[Path] = []
        """Temporary directories of agents, but for those that died with their hosts."""
        self._read: dict[Path, tuple[int, Life]] = {}
        """Diaries, as long as they were when they were read."""

    # ---- agents

    def start(self, host: Host, *environ: str) -> Node:
        """Start an agent there; `environ` has more variables of it, like "A=1"."""
        name = f"{host.number}-{len(self._job.nodes)}"
        home = self.folder / f"home-{name}"
        home.mkdir()
        self._homes.append(home)
        variables = (f"TMPDIR={home}", f"SITE_HOST={host.number}", *environ)
        node = self._job.start(
            f"--log-dir={self.folder / 'logs' / name}",
            *self._program,
            within=[*host.command, "env", *variables],
        )
        self.nodes[host.number] = node
        return node

    def start_all(self) -> None:
        """Start an agent on every host, and wait until all train and have heard of each other."""
        for host in self.hosts:
            self.start(host)
        self.await_training(len(self.hosts))
        time.sleep(SETTLE)

    def processes(self, host: Host) -> dict[int, int]:
        """What runs of the job on a host, and their parents."""
        here = marked(f"SITE_HOST={host.number}\0")
        return {pid: parent for pid, parent in here.items() if pid in marked(self._mark)}

    def workers(self, host: Host) -> set[int]:
        """Pids of the workers that run on a host."""
        return self.processes(host).keys() & {life.pid for life in self.lives()}

    def signal(self, host: Host, signo: signal.Signals) -> None:
        """Send this to all processes of a host."""
        for pid in self.processes(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signo)

    def kill_host(self, host: Host) -> None:
        """Power it off: all its processes end, and nobody hears of it by its links."""
        cut_off(host)
        self.signal(host, signal.SIGKILL)
        self.nodes.pop(host.number).close()
        last = next(home for home in reversed(self._homes) if home.match(f"home-{host.number}-*"))
        self._homes.remove(last)

    def revive(self, host: Host) -> Node:
        """Power it on again, with another agent."""
        plug_in_again(host)
        return self.start(host)

    def leader(self) -> Host:
        """The host whose agent leads."""
        found: list[Host] = []

        def is_there() -> bool:
            value = self.value(rows.LEADER)
            row = rows.decode(rows.LeaderRow, value)
            found[:] = [h for h in self.hosts if row and f":{h.ipv4}:" in row.endpoint]
            return bool(found)

        assert soon(is_there, PATIENCE), "nobody leads"
        return found[0]

    def one(self, *, leads: bool) -> Host:
        """The host whose agent leads, or another."""
        leader = self.leader()
        return leader if leads else next(host for host in self.hosts if host != leader)

    # ---- etcd

    def value(self, name: str) -> bytes:
        """What the job's nodes read under a key; b"" if nothing."""
        epoch, entry = self._epoch(), self._entry(name)
        return verified(epoch.records, entry.key, entry.value, entry.lease) if epoch else b""

    def drain(self, host: Host) -> None:
        """Ask the node on this host to go."""
        epoch = self._epoch()
        assert epoch, "no job has begun"
        prefix = _key(rows.NODES)
        span = {"key": _base64(prefix), "range_end": _base64(prefix[:-1] + "0")}
        for item in self._post("kv/range", span)["kvs"]:
            key, signed = base64.b64decode(item["key"]).decode(), base64.b64decode(item["value"])
            lease = int(item.get("lease", 0))
            row = rows.decode(rows.NodeRow, verified(epoch.records, key, signed, lease))
            if row and row.address == host.ipv4:
                want = _key(rows.WANT_DRAIN + row.node)
                wish = base64.b64encode(sign(epoch.records, want, rows.SET, 0))
                self._post("kv/put", {"key": _base64(want), "value": wish.decode()})

    def _epoch(self) -> Epoch | None:
        """The job's present one, with the secret that stands in it: the nodes bring none."""
        return read_epoch(_RUN_ID, b"", self._entry(rows.EPOCH))

    def _entry(self, name: str) -> Entry:
        """What stands under a key, or an empty value."""
        found = self._post("kv/range", {"key": _base64(_key(name))}).get("kvs") or [{}]
        value, lease = base64.b64decode(found[0].get("value", "")), int(found[0].get("lease", 0))
        return Entry(_key(name), value, 0, lease)

    def _post(self, path: str, message: dict[str, str]) -> dict[str, list[dict[str, str]]]:
        with inside(self._far):
            return self._member().post(path, message)

    def _member(self) -> EtcdServer:
        return next(member for member in self.etcd.members if not member.has_ended())

    def stop_etcd(self) -> None:
        """Kill all members."""
        for member in self.etcd.members:
            member.kill()

    def silence_etcd(self) -> None:
        """Pause all members: connections stand, and nobody answers."""
        for member in self.etcd.members:
            if not member.has_ended():
                member.pause()

    def start_etcd(self) -> None:
        """Undo both, and what else ended members; wait until all serve."""
        with inside(self._far):
            for member in self.etcd.members:
                if member.has_ended():
                    member.start()
                else:
                    member.go_on()
            self.etcd.await_all()

    # ---- what ran

    def lives(self) -> list[Life]:
        """Of all workers that have begun to work."""
        for path in (self.folder / "diaries").iterdir():
            size = path.stat().st_size
            if size and self._read.get(path, (0,))[0] != size:
                text = path.read_text()
                number, rank, world, host, pid = map(int, path.name.split("."))
                steps = tuple(map(float, text.split()))
                self._read[path] = (len(text), Life(number, rank, world, host, pid, steps))
        return [life for _, life in self._read.values()]

    def await_training(self, world: int, since: float = 0.0) -> float:
        """Until all ranks of a round of this size have made a step, all of them since then; when
        the last one did.
        """
        return self._await_round(world, lambda life: life.first, since)

    def await_steps(self, world: int, since: float) -> float:
        """Until all ranks of a round of this size, whenever it began, go on after this moment."""
        return self._await_round(world, lambda life: life.last, since)

    def _await_round(self, world: int, moment: Callable[[Life], float], since: float) -> float:
        found: list[float] = []

        def is_there() -> bool:
            for members in by_round(self.lives()).values():
                moments = [moment(life) for life in members]
                if len(members) == members[0].world == world and min(moments) > since:
                    found.append(max(moments))
            return bool(found)

        assert soon(is_there, PATIENCE), f"no round of {world}; {self.told()}"
        return max(found)

    def rounds(self) -> list[int]:
        """Numbers of the rounds that there were workers of."""
        return sorted(by_round(self.lives()))

    def told(self) -> str:
        """What all agents have written, for people."""
        return "\n".join(
            f"---- host {number}:\n{node.output[-3000:]}" for number, node in self.nodes.items()
        )

    def end(self) -> list[int]:
        """Let the workers end well; the agents' exit codes."""
        (self.folder / "go").touch()
        return [node.end(PATIENCE)[0] for node in self.nodes.values()]

    def check(self) -> None:
        """No two rounds at a time, a log of every attempt, nothing left on hosts that live."""
        lives = self.lives()
        assert not overlaps(lives), overlaps(lives)
        written = [path.read_text() for path in (self.folder / "logs").rglob("stdout.log")]
        for life in lives:
            assert any(f"step {life.first:.6f}\n" in text for text in written), life[:5]
        left = {home: list(home.iterdir()) for home in self._homes}
        assert not any(left.values()), left


@contextmanager
def inside(host: Host) -> Iterator[None]:
    """This thread, and what it starts, is on the host meanwhile."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        host.enter()
        yield
    finally:
        if ctypes.CDLL(None, use_errno=True).setns(home, 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        os.close(home)


@contextmanager
def site(
    launcher: Launcher,
    etcd: Callable[[Path], EtcdCluster],
    nnodes: str,
    count: int,
    conf: str,
    *options: str,
    pace: float = 0.02,
    program: Sequence[str] = (),
) -> Iterator[Site]:
    """So many hosts without agents yet. `etcd` makes the cluster, with its files in a folder; its
    members are to listen on all addresses. `pace`: seconds between two steps of a worker, unless
    workers run another `program`.
    """
    for name in ("diaries", "etcd"):
        (launcher.folder / name).mkdir()
    program = program or (launcher.script(_WORKER), str(pace))
    with ExitStack() as stack:
        *hosts, far = stack.enter_context(plugged(count + 1))
        with inside(far):
            cluster = stack.enter_context(etcd(launcher.folder / "etcd"))
        endpoints = ",".join(f"{far.ipv4}:{member.port}" for member in cluster.members)
        meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint={endpoints}", f"--rdzv-id={_RUN_ID}")
        every = (f"--nnodes={nnodes}", *meet, f"--rdzv-conf={conf}", "--redirects=3", *options)
        job = stack.enter_context(Job(launcher, *every))
        yield Site(launcher, hosts, far, cluster, job, program)


def clustered(version: str, size: int, folder: Path) -> EtcdCluster:
    """An etcd of so many members, for `site`. Skips the test if there is none of the version."""
    return EtcdCluster(binary_or_skip(version), folder, size, hosts=("0.0.0.0",))


def _key(name: str) -> str:
    return rows.base(_RUN_ID) + name


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
