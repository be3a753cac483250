"""What the doctor says about facts of the network: interfaces, ports, names, stores, links."""

from __future__ import annotations

import errno
from dataclasses import replace
from itertools import combinations

import pytest

from torshrun.ctl.doctor import interfaces, names, ports, stores
from torshrun.ctl.doctor.finding import SEVERITIES, Finding
from torshrun.ctl.doctor.interfaces import Interface, Network
from torshrun.ctl.doctor.links.judgement import (
    Broken,
    Link,
    Reduced,
    judge,
    judge_reduced,
    rounds,
)
from torshrun.ctl.doctor.links.orders import Checked
from torshrun.ctl.doctor.names import Lookup, Names
from torshrun.ctl.doctor.ports import Port, Ports
from torshrun.ctl.doctor.stores import Etcd, Member, Served
from torshrun.text import rate

ETH = Interface("eth0", ("10.0.0.1",), True, 10000, 1500)
BRIDGE = Interface("docker0", ("172.17.0.1",), True, 10000, 1500)
NETWORK = Network((ETH, BRIDGE), "", "10.0.0.1", "10.0.0.9:2379", {})
MEMBER = Member("e0:2379", "", 0.001, "", "3.5.21", "7", True, 1 << 20)


def worst(found: list[Finding]) -> Finding:
    return max(found, key=lambda each: SEVERITIES.index(each.severity))


# ---- interfaces


def test_a_healthy_network() -> None:
    assert worst(list(interfaces.check(NETWORK))).severity == "ok"


@pytest.mark.parametrize(
    ("changed", "severity", "said"),
    [
        ({"chosen": ""}, "warning", "no route to"),
        ({"chosen": "127.0.0.1"}, "note", "127.0.0.1"),
        ({"chosen": "172.17.0.1"}, "warning", "docker0"),
        ({"interfaces": (replace(ETH, speed=100),)}, "note", "eth0"),
        ({"interfaces": (), "failure": "denied"}, "note", "denied"),
        ({"named": {"NCCL_SOCKET_IFNAME": "ib"}}, "problem", "there is no such interface"),
        ({"named": {"GLOO_SOCKET_IFNAME": "eth"}}, "problem", "there is no such interface"),
        ({"named": {"TORSH_SOCKET_IFNAME": "ib0,eth0"}}, "ok", ""),
        ({"named": {"NCCL_SOCKET_IFNAME": "eth"}}, "ok", ""),
        ({"named": {"NCCL_SOCKET_IFNAME": "=eth"}}, "problem", "there is no such interface"),
        ({"named": {"NCCL_SOCKET_IFNAME": "^docker"}}, "ok", ""),
    ],
)
def test_networks_in_trouble(changed: dict[str, object], severity: str, said: str) -> None:
    found = worst(list(interfaces.check(replace(NETWORK, **changed))))  # type: ignore[arg-type]
    assert found.severity == severity
    assert said in found.value


# ---- ports and names


@pytest.mark.parametrize(
    ("port", "severity", "said"),
    [
        (Port("--master-port", 29500, 0), "ok", "free"),
        (Port("--master-port", 40000, 0), "note", "range of outgoing connections"),
        (Port("MASTER_PORT", 29500, errno.EADDRINUSE, "nc (pid 7)"), "warning", "nc (pid 7)"),
        (Port("--rdzv-endpoint", 29400, errno.EADDRINUSE, "x"), "note", "held by x"),
        (Port("MASTER_PORT", 80, errno.EACCES), "warning", "EACCES"),
    ],
)
def test_ports(port: Port, severity: str, said: str) -> None:
    found = worst(list(ports.check(Ports((port,), (32768, 60999)))))
    assert found.severity == severity
    assert severity == "ok" or said in found.value


@pytest.mark.parametrize(
    ("own", "severity", "said"),
    [
        (Lookup("h", ("10.0.0.1",), back="h.net"), "ok", "h.net"),
        (Lookup("h", ("127.0.1.1",), back="h"), "note", "127.0.1.1"),
        (Lookup("h", ("127.0.1.1", "10.0.0.1")), "ok", "no name"),
        (Lookup("h", (), "not known"), "warning", "not known"),
    ],
)
def test_this_hosts_name(own: Lookup, severity: str, said: str) -> None:
    (found,) = names.check(Names(own, ()))
    assert found.severity == severity
    assert said in found.value


def test_a_peer_that_nobody_knows() -> None:
    found = names.check(Names(Lookup("h", ("10.0.0.1",)), (Lookup("p", (), "timed out"),)))
    assert [each.severity for each in found] == ["ok", "problem"]


# ---- stores


@pytest.mark.parametrize(
    ("members", "severity", "said"),
    [
        ([MEMBER, MEMBER, MEMBER], "ok", ""),
        ([MEMBER], "note", "1 of 1"),
        ([MEMBER, Member("e1:2379", "refused")], "warning", "refused"),
        ([Member("e1:2379", "refused")], "problem", "0 of 1"),
        ([MEMBER, replace(MEMBER, cluster="8")], "problem", "different clusters"),
        ([MEMBER, replace(MEMBER, read_failure="no leader")], "problem", "no leader"),
        ([MEMBER, replace(MEMBER, version="3.3.2")], "problem", "3.3.2"),
        ([MEMBER, replace(MEMBER, version="3.5.1")], "warning", "3.5.1"),
        ([MEMBER, replace(MEMBER, latency=0.2)], "warning", "200.00 ms"),
        ([MEMBER, replace(MEMBER, database=2 << 30)], "warning", "2 GiB"),
        ([MEMBER, replace(MEMBER, alarms=("NOSPACE",))], "problem", "NOSPACE"),
        ([replace(MEMBER, has_leader=False)] * 2, "problem", "none has a leader"),
    ],
)
def test_etcd(members: list[Member], severity: str, said: str) -> None:
    found = worst(list(stores.check_etcd(Etcd(tuple(members), ()))))
    assert found.severity == severity
    assert said in found.value


def test_a_password_that_can_be_read() -> None:
    found = worst(list(stores.check_etcd(Etcd((MEMBER, MEMBER), ("e0:2379",)))))
    assert "unencrypted to e0:2379" in found.value


@pytest.mark.parametrize(
    ("outcome", "secret", "severities"),
    [
        ("nobody", True, ["ok"]),
        ("", True, ["ok"]),
        ("another secret", True, ["problem"]),
        ("nobody", False, ["ok", "note"]),
    ],
)
def test_a_store_of_an_agent(outcome: str, secret: bool, severities: list[str]) -> None:
    found = stores.check_served(Served("h:29400", outcome, 0.0, secret))
    assert [each.severity for each in found] == severities


# ---- links


@pytest.mark.parametrize("size", range(2, 9))
def test_rounds_have_each_pair_once(size: int) -> None:
    nodes = [f"n{number}" for number in range(size)]
    plan = rounds(nodes)
    pairs = [frozenset(pair) for each in plan for pair in each]
    assert sorted(map(sorted, pairs)) == sorted(map(list, combinations(nodes, 2)))
    for each in plan:
        taken = [node for pair in each for node in pair]
        assert len(taken) == len(set(taken))
    assert all(b != "n0" for each in plan for _, b in each)


def mesh(slow: dict[tuple[str, str], float], size: int = 4) -> list[Link]:
    nodes = [f"n{number}" for number in range(size)]
    pairs = [(a, b) for a in nodes for b in nodes if a != b]
    return [Link(a, b, slow.get((a, b), 1e9), 1e-4) for a, b in pairs]


def test_links_that_are_alike() -> None:
    assert worst(list(judge(mesh({("n0", "n1"): 0.6e9}), []))).severity == "ok"


def test_the_slow_link_is_named() -> None:
    found = [f for f in judge(mesh({("n2", "n1"): 0.4e9}), []) if f.severity != "ok"]
    assert [each.what for each in found] == ["slow link n2 -> n1"]
    assert "3.2 Gbit/s" in found[0].value
    assert "median of all is 8 Gbit/s" in found[0].value


def test_a_node_whose_links_are_all_slow() -> None:
    slow = {("n2", other): 1e8 for other in ("n0", "n1", "n3")}
    found = [f.what for f in judge(mesh(slow), []) if f.severity != "ok"]
    assert found[-1] == "slow node n2"
    assert len(found) == 4


def test_a_single_peer_is_compared_with_the_way_back() -> None:
    links = [Link("here", "p", 1e9, 1e-4), Link("p", "here", 1e8, 1e-4)]
    assert [f.what for f in judge(links, []) if f.severity != "ok"] == ["slow link p -> here"]


def test_a_late_link() -> None:
    links = [*mesh({}), Link("n0", "far", 1e9, 0.03)]
    assert [f.what for f in judge(links, []) if f.severity != "ok"] == ["late link n0 -> far"]


def test_a_broken_link() -> None:
    (found,) = judge([], [Broken(("here", "p"), "no answer in time")])
    assert (found.what, found.severity) == ("here - p", "problem")


def test_all_reduces() -> None:
    def reduced(name: str, rate: float, failure: str = "", tcp: float = 1e9) -> Reduced:
        return Reduced(("here", name), Checked(failure, 1e-5, rate), tcp)

    found = judge_reduced(
        [reduced("a", 1e9), reduced("b", 1e9), reduced("c", 4e8), reduced("d", 0.0, "died")]
    )
    assert [each.severity for each in found] == ["ok", "ok", "warning", "problem"]
    (late,) = judge_reduced([reduced("a", 1e8)])
    assert late.severity == "note"
    assert "0.10 of plain TCP" in late.value


def test_a_faulty_node() -> None:
    fine, fails = Checked("", 1e-5, 1e9), Checked("died", 0.0, 0.0)
    pairs = combinations(["here", "a", "b", "c"], 2)
    found = judge_reduced([Reduced(p, fails if "b" in p else fine, 0.0) for p in pairs])
    problems = [each.what for each in found if each.severity == "problem"]
    assert problems[3:] == ["faulty node b"]


@pytest.mark.parametrize(
    ("number", "text"), [(10.0, "80 bit/s"), (1.25e6, "10 Mbit/s"), (5e10, "400 Gbit/s")]
)
def test_rates(number: float, text: str) -> None:
    assert rate(number) == text
