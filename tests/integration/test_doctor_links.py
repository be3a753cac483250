"""Doctors that measure the network between them: slow links, wrong secrets, peers that stall."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.doctors import GUARD, clean, findings, run_doctor, serving
from support.hosts import INTERFACE, Host, needs_hosts, plugged
from support.ports import free_port
from support.processes import marked, soon

from torsh_runtime.store import wire
from torsh_runtime.store.channel import Channel
from torsh_runtime.store.endpoint import TcpEndpoint
from torshrun.config.job import Address
from torshrun.ctl.doctor.links import orders
from torshrun.ctl.doctor.links.orders import About, LinkError, Measured
from torshrun.topology.gpus import visible

SECRET = secrets.token_hex(32)
KEY = orders.doctor_key(SECRET)


@pytest.fixture(scope="module")
def peer() -> Iterator[Address]:
    """A doctor that serves here, with a secret."""
    port = free_port()
    with serving(f"127.0.0.1:{port}", clean(TORSH_SECRET=SECRET)):
        yield Address("127.0.0.1", port)


@contextmanager
def connected(peer: Address, *order: object) -> Iterator[Channel]:
    """A connection over which this order has been given."""
    channel = Channel.open(TcpEndpoint(*peer), KEY, time.monotonic() + GUARD)
    try:
        channel.send(wire.encode(list(order)), time.monotonic() + GUARD)
        yield channel
    finally:
        channel.close()


def test_a_link_is_measured(peer: Address) -> None:
    found = orders.measure(peer, KEY)
    assert 0 < found.latency < GUARD
    assert min(found.out_rate, found.in_rate) > 1e6


def test_a_peer_measures_for_others(peer: Address) -> None:
    order = ("measure", *peer)  # as it happens of itself
    found = orders.ask(peer, KEY, Measured, orders.MEASURE_SECONDS, *order)
    assert min(found) > 0
    with pytest.raises(LinkError, match=r"127\.0\.0\.1:1 cannot be measured from there"):
        orders.ask(peer, KEY, Measured, orders.MEASURE_SECONDS, "measure", "127.0.0.1", 1)


def test_a_wrong_secret_and_none(peer: Address) -> None:
    for key in (orders.doctor_key(secrets.token_hex(32)), b""):
        with pytest.raises(LinkError, match="does not know this job's secret"):
            orders.measure(peer, key)


@pytest.mark.parametrize(
    "order",
    [["launch"], [], ["measure", "127.0.0.1"], ["all_reduce", 0, 5, "x", b"y"], [["echo"]]],
)
def test_orders_that_make_no_sense(peer: Address, order: list[object]) -> None:
    with connected(peer, *order) as channel:
        match wire.decode(channel.receive(time.monotonic() + GUARD)):
            case [False, str(reason)]:
                assert reason
            case answer:
                raise AssertionError(answer)


def test_strangers_get_a_greeting_and_nothing_else(peer: Address) -> None:
    with socket.create_connection(peer, GUARD) as stranger:
        stranger.settimeout(GUARD)
        stranger.sendall(wire.encode([bytes(wire.NONCE_BYTES), bytes(wire.NONCE_BYTES)]))
        got = b""
        while part := stranger.recv(65536):  # until it is cut off
            got += part
        assert len(got) < 400
        assert b"does not know this job's secret" in got


def test_a_peer_that_stalls(peer: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = Address("127.0.0.1", silent.getsockname()[1])
        with pytest.raises(LinkError, match="no answer in time"):
            orders.ask(place, KEY, About, 0.5, "about")


def test_guests_that_stall_do_not_keep_others_out(peer: Address) -> None:
    with connected(peer, "echo"), connected(peer, "about") as channel:
        answer = wire.decode(channel.receive(time.monotonic() + GUARD))
        assert isinstance(answer, list)
        assert answer[0] is True
    assert orders.measure(peer, KEY).latency > 0


def test_without_a_secret_only_this_host_is_served() -> None:
    port = free_port()
    with serving(str(port), clean()):
        assert orders.measure(Address("127.0.0.1", port), b"").latency > 0


def test_it_ends_at_ctrl_c() -> None:
    with serving(f"127.0.0.1:{free_port()}", clean(TORSH_SECRET=SECRET)) as process:
        process.send_signal(2)
        assert process.wait(GUARD) in (0, -2)


def test_a_peer_that_is_not_there() -> None:
    code, told = run_doctor("--only=links", "--peers=127.0.0.1:1")
    (found,) = told["findings"]
    assert (code, found["what"]) == (1, "here - 127.0.0.1:1")
    assert found["value"] == "Connection refused"


def test_an_all_reduce_and_the_node_that_fails(peer: Address, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError('no numpy on this node')")
    environ = clean(TORSH_SECRET=SECRET, MARK=secrets.token_hex(8))
    broken = f"127.0.0.1:{free_port()}"
    with serving(broken, {**environ, "PYTHONPATH": str(tmp_path)}):
        argv = ("--only=links", "--network-check", f"--peers={peer},{broken}")
        code, told = run_doctor(*argv, environ=environ)
    assert soon(lambda: not marked(environ["MARK"]), GUARD)
    assert code == 1
    works, fails = told["all_reduces"]
    assert (works["nodes"], works["failure"]) == (["here", str(peer)], "")
    assert works["bytes_per_second"] > 1e6
    assert works["tcp_bytes_per_second"] > 1e6
    assert fails["nodes"] == ["here", broken]
    assert "no numpy on this node" in fails["failure"]
    assert findings(told, "links")[f"all_reduce here - {broken}"]["severity"] == "problem"


@pytest.mark.skipif(bool(visible(os.environ)), reason="there are GPUs here")
def test_a_check_of_gpus_says_where_there_is_none(peer: Address) -> None:
    argv = ("--only=links", "--network-check", "--gpus", f"--peers={peer}")
    code, told = run_doctor(*argv, environ=clean(TORSH_SECRET=SECRET))
    [found] = told["all_reduces"]
    assert (code, "GPU" in found["failure"]) == (1, True), found


# ---- hosts of their own


@pytest.mark.netns
@needs_hosts
def test_the_slow_link_is_named() -> None:
    environ = clean(TORSH_SECRET=SECRET)
    with plugged(3) as hosts, ExitStack() as stack:
        _slow_down(hosts[2])
        for host in hosts[1:]:
            stack.enter_context(serving("7000", environ, host.command))
        names = [f"{host.ipv4}:7000" for host in hosts[1:]]
        argv = ("--only=links", "--all-pairs", f"--peers={','.join(names)}")
        code, told = run_doctor(*argv, within=hosts[0].command, environ=environ)
    assert code == 0
    found = findings(told, "links")
    slow = {what for what, each in found.items() if what.startswith("slow link")}
    assert slow == {f"slow link {names[1]} -> {other}" for other in ("here", names[0])}
    assert f"slow node {names[1]}" in found
    assert len(told["links"]) == 6


def _slow_down(host: Host) -> None:
    """What leaves it: 40 Mbit/s."""
    limit = ("tbf", "rate", "40mbit", "burst", "32kbit", "latency", "50ms")
    command = [*host.command, "tc", "qdisc", "add", "dev", INTERFACE, "root", *limit]
    subprocess.run(command, check=True, timeout=GUARD)
