"""torshctl doctor on this machine, with real libraries, ports and etcd."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.doctors import COMMAND, GUARD, clean, findings, run_doctor
from support.etcd_servers import EtcdCluster, binary_or_skip
from support.hosts import needs_hosts, plugged
from support.other_users import needs_root
from support.ports import free_port
from support.processes import marked, soon

from torshrun.config.job import Access, Address, RendezvousConfig
from torshrun.ctl.doctor import probes, stores, versions
from torshrun.ctl.doctor.finding import SEVERITIES

AREAS = (
    *("versions", "machine", "kernel", "gpus", "fabric", "network", "names", "ports", "limits"),
    "environment",
)


def test_this_machine() -> None:
    code, told = run_doctor()
    assert code == (told["worst"] == "problem")
    assert list(dict.fromkeys(each["area"] for each in told["findings"])) == [*AREAS]
    for each in told["findings"]:
        assert set(each) == {"area", "what", "value", "severity", "advice"}
        assert each["severity"] in SEVERITIES
        assert each["advice"] or each["severity"] == "ok"
    assert set(told) == {
        *("schema", "host", "torshrun", "worst", "findings", "links", "all_reduces")
    }
    versions = findings(told, "versions")
    assert versions["native core"]["value"] == "loads, and fits this version"
    assert versions["numpy"]["severity"] == "ok"


# ---- libraries


def module(folder: Path, name: str, text: str) -> dict[str, str]:
    """An environment in which a package of this name is found first."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(text)
    return clean(PYTHONPATH=str(folder))


def test_a_torch_that_fails(tmp_path: Path) -> None:
    environ = module(tmp_path, "torch", "raise ImportError('libcudart.so.\\x1b[2J9 is missing')")
    code, told = run_doctor("--only=versions", environ=environ)
    found = findings(told, "versions")["import torch"]
    assert code == 1
    assert found["severity"] == "problem"
    assert "is missing" in found["value"]


def test_a_torch_that_hangs(tmp_path: Path) -> None:
    mark = os.urandom(8).hex()
    environ = module(tmp_path, "torch", "import time; time.sleep(600)")
    argv = ("--only=versions", "--timeout=1")
    code, told = run_doctor(*argv, environ={**environ, "MARK": mark})
    found = findings(told, "versions")["import torch"]
    assert code == 1
    assert found["value"] == "not done after 1 s"
    assert soon(lambda: not marked(mark))


def test_a_probe_ends_with_a_doctor_that_is_killed(tmp_path: Path) -> None:
    mark = os.urandom(8).hex()
    environ = module(
        tmp_path, "torch", f"open({str(tmp_path / 'there')!r}, 'w'); import time; time.sleep(600)"
    )
    process = subprocess.Popen(
        [*COMMAND, "--only=versions"],
        env={**environ, "MARK": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert soon((tmp_path / "there").exists, GUARD)
    process.kill()
    process.wait()
    assert soon(lambda: not marked(mark))


def test_probes_tell_what_became_of_them() -> None:
    assert probes.python("report(a=1)", GUARD).facts == {"a": 1}
    killed = probes.python("import os; os.kill(os.getpid(), 9)", GUARD)
    assert (killed.outcome, killed.said) == ("failed", "SIGKILL")
    assert probes.program(["/no/such/program"], GUARD).outcome == "failed"
    assert probes.python("print('no report')", GUARD).outcome == "ok"


def test_a_core_of_other_sources() -> None:
    newer = versions._CORE.replace("stub.read_text()", "stub.read_text() + 'def added(): ...'")
    assert newer != versions._CORE
    probed = probes.python(newer, GUARD)
    assert probed.facts == {"missing": ["added"]}
    facts = versions.Versions("", {}, "", None, {versions.CORE: probed})
    (found,) = [each for each in versions.check(facts) if each.what == versions.CORE]
    assert found.severity == "problem"


# ---- ports, variables, places


def test_a_port_is_held_by_another_process() -> None:
    port = free_port()
    code = (
        "import socket, sys; held = socket.create_server(('', int(sys.argv[1]))); "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline()
        _, told = run_doctor("--only=ports", environ=clean(MASTER_PORT=str(port)))
        holder.kill()
    found = findings(told, "ports")[f"port {port} (MASTER_PORT)"]
    assert found["severity"] == "warning"
    assert f"(pid {holder.pid})" in found["value"]


def test_suspicious_variables_and_no_secrets() -> None:
    hostile = "\x1b[2JINFO\N{BULLET}\udcff"
    environ = clean(
        RANK="0",
        TORSH_SECRET="hunter2hunter2hunter2",
        NCCL_DEBUG=hostile,
        PYTHONIOENCODING="ascii",
    )
    ended = subprocess.run(
        [*COMMAND, "--only=environment"], env=environ, capture_output=True, timeout=GUARD
    )
    assert ended.returncode == 0
    assert b"Left over from a job" in ended.stdout
    assert b"hunter2" not in ended.stdout + ended.stderr
    assert b"\x1b" not in ended.stdout


def _as_nobody(*command: str) -> list[str]:
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]


@needs_root
def test_as_nobody_in_a_bare_place() -> None:
    """No network, no PATH, no HOME, nothing writable, and neither /sys nor /proc/net to read."""
    if subprocess.run(_as_nobody(sys.executable, "-P", "-c", "import torshrun")).returncode:
        pytest.skip("this checkout is kept from other users")
    script = (
        "mount -t tmpfs -o ro none /sys; mount -o remount,bind,ro /; "
        'mount -t tmpfs -o ro none /proc/net; exec "$@"'
    )
    within = ["unshare", "--mount", "--net", "sh", "-c", script, "sh", "env", "-i", *_as_nobody()]
    areas = "--only=machine,kernel,gpus,fabric,network,names,ports,limits,environment"
    _, told = run_doctor(areas, f"--master-port={free_port()}", within=within)
    failed = [each for each in told["findings"] if "could not be examined" in each["value"]]
    assert failed == []
    assert list(dict.fromkeys(each["area"] for each in told["findings"])) == [*AREAS[1:]]
    assert findings(told, "network")["address for other nodes"]["severity"] == "warning"


def test_serving_everybody_is_refused() -> None:
    ended = subprocess.run(
        [*COMMAND, "--serve=0.0.0.0:0"], env=clean(), capture_output=True, text=True, timeout=GUARD
    )
    assert ended.returncode == 2
    assert "--serve needs a secret" in ended.stderr


# ---- stores


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One for all of them; the last one gives it users."""
    with EtcdCluster(binary_or_skip("3.5"), tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def config(*endpoints: str, **access: Any) -> RendezvousConfig:
    places = [endpoint.rpartition(":") for endpoint in endpoints]
    found = tuple(Address(host, int(port)) for host, _, port in places)
    return RendezvousConfig(backend="etcd", endpoints=found, access=Access(**access))


@pytest.mark.etcd
def test_an_etcd_that_is_up_and_one_that_is_not(etcd: EtcdCluster) -> None:
    (member,) = etcd.members
    meet = ("--rdzv-backend=etcd", f"--rdzv-endpoint={member.endpoint},127.0.0.1:1")
    code, told = run_doctor("--only=etcd", *meet)
    found = findings(told, "etcd")
    assert code == 0
    assert "a linearizable read takes" in found[f"etcd {member.endpoint}"]["value"]
    assert found["etcd 127.0.0.1:1"]["severity"] == "warning"
    assert found["etcd as a whole"]["value"] == "1 of 2 endpoints answer"
    told_alone = stores.check_etcd(stores.gather_etcd(config("127.0.0.1:1"), 1.0))
    assert [each.severity for each in told_alone] == ["warning", "problem"]


def test_certificates_that_are_not_there() -> None:
    facts = stores.gather_etcd(config("127.0.0.1:1", tls=True, cacert="/no/such/ca.pem"), 1.0)
    assert "/no/such/ca.pem" in facts.members[0].failure


@pytest.mark.netns
@needs_hosts
def test_name_servers_that_do_not_answer(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 10.77.0.9\noptions timeout:20\n")
    script = f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf; exec "$@"'
    with plugged(1) as (host,):
        within = [*host.command, "unshare", "--mount", "sh", "-c", script, "sh"]
        meet = ("--rdzv-backend=etcd", "--rdzv-endpoint=far.example:2379")
        code, told = run_doctor("--only=names", "--timeout=1", *meet, within=within)
    assert code == 1
    assert findings(told, "names")["far.example"]["value"].endswith("no answer within 1 s")


@pytest.mark.etcd
def test_an_etcd_that_says_nothing(etcd: EtcdCluster) -> None:
    (member,) = etcd.members
    member.pause()
    began = time.monotonic()
    facts = stores.gather_etcd(config(member.endpoint), 1.0)
    member.go_on()
    assert "no answer" in facts.members[0].failure
    assert time.monotonic() - began < GUARD


def test_a_rendezvous_that_nobody_serves_and_one_that_is_something_else() -> None:
    meet = ("--only=rendezvous", "--rdzv-backend=tcp", "--timeout=1")
    port = free_port()
    code, told = run_doctor(*meet, f"--rdzv-endpoint=127.0.0.1:{port}")
    assert code == 0
    assert "not served yet" in str(told)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, told = run_doctor(*meet, f"--rdzv-endpoint=127.0.0.1:{port}")
    assert code == 1
    assert findings(told, "rendezvous")[f"store at 127.0.0.1:{port}"]["severity"] == "problem"


@pytest.mark.etcd
def test_an_etcd_with_users(etcd: EtcdCluster) -> None:
    (member,) = etcd.members
    member.post("auth/user/add", {"name": "root", "password": "pw"})
    member.post("auth/role/add", {"name": "root"})
    member.post("auth/user/grant", {"user": "root", "role": "root"})
    member.post("auth/enable", {})
    wrong, right = ({"user": "root", "password": word} for word in ("other", "pw"))
    refused = stores.gather_etcd(config(member.endpoint, **wrong), 5.0).members[0]
    assert "authentication failed" in refused.failure + refused.read_failure
    let_in = stores.gather_etcd(config(member.endpoint, **right), 5.0).members[0]
    assert (let_in.failure, let_in.read_failure) == ("", "")
    assert 0 < let_in.latency < GUARD
