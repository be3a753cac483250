"""Examines the store where nodes rendezvous: whether it answers, how fast, and its condition."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from torsh_runtime.errors import ConfigError, StoreError
from torsh_runtime.store.etcd import EtcdConfig
from torsh_runtime.store.etcd.gateway import Gateway
from torshrun.config.job import Access, Address, RendezvousConfig
from torshrun.ctl.doctor.finding import Finding, note, ok, problem, warning
from torshrun.rendezvous.address import detach
from torshrun.rendezvous.rendezvous_store import join
from torshrun.text import size

READS = 11
"""The number of linearizable reads whose median round trip is reported."""
_SLOW = 0.1
"""Seconds of a round trip from which on a ttl of a few seconds becomes risky."""
_FULL = 1.6 * (1 << 30)
"""Bytes of a database from which on to warn. etcd's default quota is 2 GiB."""
_READ = {"key": "dG9yc2gv"}  # "torsh/"


@dataclass(frozen=True, slots=True)
class Member:
    """Holds what one endpoint of etcd answered."""

    address: str
    failure: str = ""
    """The reason why it did not answer. Empty if it did."""
    latency: float = 0.0
    """Seconds: the median of linearizable reads. 0 if they failed."""
    read_failure: str = ""
    """The reason why they failed."""
    version: str = ""
    cluster: str = ""
    """The id of the cluster, as text."""
    has_leader: bool = False
    database: int = 0
    """Bytes of the database."""
    alarms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Etcd:
    members: tuple[Member, ...]
    password_in_clear: tuple[str, ...]
    """Endpoints to which a password is sent unencrypted."""


def gather_etcd(config: RendezvousConfig, seconds: float) -> Etcd:
    """Ask all endpoints at once, each on its own, with `seconds` for each request."""
    configs = [_one(endpoint, config.access, seconds) for endpoint in config.endpoints]
    clear = [str(address) for each in configs for address in each.password_in_clear()]
    return Etcd(tuple(asyncio.run(_ask_all(configs))), tuple(clear))


def _one(endpoint: Address, access: Access, seconds: float) -> EtcdConfig:
    return EtcdConfig(
        endpoints=(f"{'https' if access.tls else 'http'}://{endpoint}",),
        ca=access.cacert or None,
        cert=access.cert or None,
        key=access.key or None,
        user=access.user or None,
        password=access.password or None,
        request_timeout=seconds,
    )


async def _ask_all(configs: Sequence[EtcdConfig]) -> list[Member]:
    detach()
    return await asyncio.gather(*map(_ask, configs))


async def _ask(config: EtcdConfig) -> Member:
    name = str(config.addresses()[0])
    try:
        gateway = Gateway(config)
    except ConfigError as error:
        return Member(name, failure=str(error))
    try:
        return await _asked(name, gateway)
    except StoreError as error:
        return Member(name, failure=_brief(error))
    finally:
        await gateway.close()


async def _asked(name: str, gateway: Gateway) -> Member:
    """Ask an endpoint for its status, latency and alarms.

    Raises StoreError if it does not even report its status.
    """
    status = await _call(gateway, "maintenance/status", {})
    latency, failure = 0.0, ""
    try:
        latency = await _latency(gateway)
    except StoreError as error:
        failure = _brief(error)
    return Member(
        address=name,
        latency=latency,
        read_failure=failure,
        version=str(status.get("version", "")),
        cluster=str(status.get("header", {}).get("cluster_id", "")),
        has_leader=str(status.get("leader", "0")) not in ("", "0"),
        database=_number(status.get("dbSize")),
        alarms=await _alarms(gateway),
    )


def _brief(error: StoreError) -> str:
    """Return the last failure of a request that was given up, without the name of the member."""
    found = re.search(r"(no answer within .* s) \(last: \S+: (.*)\)\. ", str(error))
    return f"{found[1]}: {found[2]}" if found else str(error)


async def _call(gateway: Gateway, path: str, message: dict[str, Any]) -> dict[str, Any]:
    return await gateway.call(path.partition("/")[2], path, message, gateway.deadline())


async def _latency(gateway: Gateway) -> float:
    await _call(gateway, "kv/range", _READ)  # opens the connection, logs in
    taken = []
    for _ in range(READS):
        began = time.perf_counter()
        await _call(gateway, "kv/range", _READ)
        taken.append(time.perf_counter() - began)
    return median(taken)


async def _alarms(gateway: Gateway) -> tuple[str, ...]:
    found: Any = []
    with suppress(StoreError):  # with authentication enabled only etcd's root may ask
        found = (await _call(gateway, "maintenance/alarm", {"action": "GET"})).get("alarms")
    return tuple(str(alarm.get("alarm")) for alarm in found or () if isinstance(alarm, dict))


def _number(value: object) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() else 0


def check_etcd(facts: Etcd) -> Iterator[Finding]:
    yield from map(_member, facts.members)
    yield _cluster(facts.members)
    if facts.password_in_clear:
        yield warning(
            "etcd's password",
            f"goes unencrypted to {', '.join(facts.password_in_clear)}",
            "Write https:// and give etcd certificates (docs/etcd.md).",
        )
    for alarm in sorted({alarm for member in facts.members for alarm in member.alarms}):
        yield problem("etcd's alarm", alarm, _ALARMS.get(alarm, "See etcdctl alarm list."))


_ALARMS = {
    "NOSPACE": "It takes no more writes: etcdctl compact, etcdctl defrag, then etcdctl alarm "
    "disarm; or a larger --quota-backend-bytes.",
    "CORRUPT": "Members disagree about the data: replace the corrupt one from a snapshot.",
}


def _member(member: Member) -> Finding:
    what = f"etcd {member.address}"
    if member.failure:
        return warning(
            what,
            member.failure,
            "Check that etcd runs there, that its client port can be reached from here, and that "
            "cacert, cert, key, user and password are right.",
        )
    value = f"version {member.version}, database {size(member.database)}"
    if member.read_failure:
        return problem(
            what,
            f"{value}; reads fail: {member.read_failure}",
            "It has lost the majority, or refuses this user: start the other members, or let the "
            "user's role read and write torsh/ (docs/etcd.md).",
        )
    value += f", a linearizable read takes {1000 * member.latency:.2f} ms"
    if member.version.startswith(("2.", "3.0", "3.1", "3.2", "3.3")):
        return problem(what, value, "torshrun needs etcd 3.4 or newer.")
    if member.version in ("3.5.0", "3.5.1", "3.5.2"):
        return warning(
            what,
            value,
            "A member of this version that is killed may come back without committed writes "
            "(etcd's issue 13766): use etcd 3.5.3 or newer, or 3.4.",
        )
    if member.latency > _SLOW:
        return warning(
            what,
            value,
            "Nodes may be taken for lost: use a member that is nearer, faster disks, or a larger "
            "ttl (--rdzv-conf ttl=30).",
        )
    if member.database > _FULL:
        return warning(
            what, value, "Its quota is 2 GiB by default: compact and defragment it (etcdctl)."
        )
    return ok(what, value)


def _cluster(members: Sequence[Member]) -> Finding:
    what = "etcd as a whole"
    alive = [member for member in members if not member.failure]
    value = f"{len(alive)} of {len(members)} endpoints answer"
    if not alive:
        return problem(
            what, value, "No job can start: see the endpoints above, and --rdzv-endpoint."
        )
    clusters = {member.cluster for member in alive}
    if len(clusters) > 1:
        return problem(
            what,
            f"{value}, of {len(clusters)} different clusters",
            "Nodes would not find each other: name members of one cluster in --rdzv-endpoint.",
        )
    if not any(member.has_leader for member in alive):
        return problem(what, f"{value}, none has a leader", "Start a majority of its members.")
    if len(members) == 1:
        return note(
            what,
            value,
            "Jobs end if it stays down: name all members of a cluster of three.",
        )
    return ok(what, value)


# ---- the store that an agent serves


@dataclass(frozen=True, slots=True)
class Served:
    endpoint: str
    outcome: str
    """Empty if it answers, "nobody" if nothing listens, else the reason why it fails."""
    latency: float = 0.0
    """Seconds: the median of reads."""
    has_secret: bool = False


def gather_served(config: RendezvousConfig, seconds: float) -> Served:
    (endpoint,) = config.endpoints
    try:
        latency = asyncio.run(_visit(config, seconds))
    except StoreError as error:
        nobody = isinstance(error.__cause__, ConnectionRefusedError)
        return Served(str(endpoint), "nobody" if nobody else str(error), 0.0, bool(config.secret))
    return Served(str(endpoint), "", latency, bool(config.secret))


async def _visit(config: RendezvousConfig, seconds: float) -> float:
    detach()
    meeting = await join(config, seconds)
    try:
        taken = []
        for _ in range(READS):
            began = time.perf_counter()
            await meeting.store.get("torsh/")
            taken.append(time.perf_counter() - began)
        return median(taken)
    finally:
        await meeting.close()


def check_served(facts: Served) -> Iterator[Finding]:
    what = f"store at {facts.endpoint}"
    if facts.outcome == "nobody":
        yield ok(what, "not served yet: the agent of that host will serve it")
    elif facts.outcome:
        yield problem(
            what,
            facts.outcome,
            "Give the secret of the job that runs there (--secret-file), another port if that is "
            "not a job of torshrun, or open the firewall.",
        )
    else:
        yield ok(what, f"a job uses it; a read takes {1000 * facts.latency:.2f} ms")
    if not facts.has_secret:
        yield note(
            "the job's secret",
            "none",
            "Whoever reaches the port can join: openssl rand -hex 32, and --secret-file or "
            "TORSH_SECRET on all nodes (docs/configuration.md).",
        )
