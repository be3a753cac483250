"""What each host of a job is told, and what is refused before any ssh starts."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config.command_line import parse
from torshrun.config.job import Address
from torshrun.config.request import gather
from torshrun.ssh.plan import HostsJob, describe, plan

Plan = Callable[..., HostsJob]


@pytest.fixture
def planned(tmp_path: Path) -> Plan:
    """planned(*argv, lines=[...], **environ): with such a hostfile."""

    def make(*argv: str, lines: tuple[str, ...] = ("a", "b"), **environ: str) -> HostsJob:
        path = tmp_path / "hosts"
        path.write_text("\n".join(lines))
        line = parse([f"--hostfile={path}", *argv])
        return plan(gather(line.given, line.script, line.arguments, environ), environ)

    return make


def told(job: HostsJob, rank: int) -> Mapping[str, Any]:
    endpoint = Address("10.0.0.1", 4000) if job.meets_at_node_0 else None
    return job.told(rank, job.hosts, endpoint)


def texts(job: HostsJob, rank: int) -> dict[str, str | None]:
    return {key: entry[0] for key, entry in told(job, rank)["entries"].items()}


def test_slots_are_workers_and_ranks_follow_the_file(planned: Plan) -> None:
    job = planned("train.py", lines=("a slots=4", "b slots=2", "c"))
    assert [texts(job, rank)["nproc_per_node"] for rank in range(3)] == ["4", "2", "1"]
    assert [texts(job, rank)["node_rank"] for rank in range(3)] == ["0", "1", "2"]
    for rank in range(3):
        assert texts(job, rank)["nnodes"] == "3"
        assert texts(job, rank)["rdzv_endpoint"] == "10.0.0.1:4000"
        assert texts(job, rank)["hostfile"] is None


def test_a_number_of_workers_holds_for_all(planned: Plan) -> None:
    job = planned("--nproc-per-node=2", "train.py", lines=("a slots=4", "b slots=2"))
    assert [texts(job, rank)["nproc_per_node"] for rank in range(2)] == ["2", "2"]
    job = planned("--nproc-per-node=gpu", "train.py", lines=("a slots=4", "b"))
    assert [texts(job, rank)["nproc_per_node"] for rank in range(2)] == ["gpu", "gpu"]


def test_slots_that_are_chosen_are_gpus(planned: Plan) -> None:
    job = planned("--include=a:1,3", "train.py", lines=("a slots=4", "b slots=2"))
    assert texts(job, 0)["nproc_per_node"] == "2"
    assert told(job, 0)["exports"] == {"CUDA_VISIBLE_DEVICES": "1,3"}


def test_the_first_of_the_hosts_if_so_many_are_asked_for(planned: Plan) -> None:
    job = planned("--nnodes=2", "train.py", lines=("a", "b", "c"))
    assert [host.name for host in job.hosts] == ["a", "b"]


def test_an_elastic_job_meets_over_tcp(planned: Plan) -> None:
    job = planned("--nnodes=1:2", "train.py", lines=("a", "b", "c"))
    assert len(job.hosts) == 3
    assert texts(job, 1)["rdzv_backend"] == "tcp"
    assert texts(job, 1)["nnodes"] == "1:2"
    assert job.nodes.fewest == 1


def test_where_nodes_meet_may_be_given(planned: Plan) -> None:
    job = planned("--master-addr=m", "--master-port=5", "train.py")
    assert not job.meets_at_node_0
    assert texts(job, 1)["rdzv_endpoint"] == ""
    assert str(job.config.rendezvous and job.config.rendezvous.endpoints[0]) == "m:5"
    etcd = planned("--rdzv-backend=etcd", "--rdzv-endpoint=e:1", "train.py")
    assert not etcd.meets_at_node_0
    assert texts(etcd, 1)["node_rank"] == "0"


def test_a_port_alone_is_the_first_hosts(planned: Plan) -> None:
    job = planned("--master-port=5", "train.py")
    assert job.meets_at_node_0
    assert job.port == 5
    assert job.notes == ()


def test_every_job_has_a_name_and_a_secret_of_its_own(planned: Plan) -> None:
    one, other = planned("train.py"), planned("train.py")
    assert texts(one, 0)["run_id"] == texts(one, 1)["run_id"] != texts(other, 0)["run_id"]
    secrets = [
        told(job, rank)["credentials"]["TORSH_SECRET"] for job in (one, other) for rank in (0, 1)
    ]
    assert secrets[0] == secrets[1] != secrets[2]
    assert len(secrets[0]) == 64
    assert secrets[0] not in repr(one)
    given = planned("train.py", TORSH_SECRET="of a user's own choice")
    assert told(given, 0)["credentials"]["TORSH_SECRET"] == "of a user's own choice"


def test_where_metrics_are_sent_is_told_to_all_hosts(planned: Plan) -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=of%20mine",
    }
    job = planned("--otlp=env", "train.py", **environ)
    assert texts(job, 1)["otlp"] == "env"
    assert environ.items() <= told(job, 1)["credentials"].items()
    assert "mine" not in repr(job)


def test_the_command_is_one_that_any_shell_takes_and_holds_nothing_of_the_job(
    planned: Plan,
) -> None:
    job = planned(
        "--ssh-command=ssh -F 'my config'",
        "--remote-python=/opt/my python/bin/python",
        "train.py",
        "--lr",
        lines=("me@a port=2222", "localhost"),
    )
    command = job.command(job.hosts[0])
    assert command[:3] == ("ssh", "-F", "my config")
    assert command[-6:-1] == ("-T", "-p", "2222", "--", "me@a")
    remote = shlex.split(command[-1])
    assert remote == ["exec", "/opt/my python/bin/python", "-P", "-m", "torshrun.ssh.remote", "15"]
    assert job.command(job.hosts[1])[1:3] == ("-P", "-m")
    assert "BatchMode=yes" in command
    assert "ServerAliveInterval=5" in command


def test_agents_are_stopped_by_a_signal_that_they_handle(planned: Plan) -> None:
    assert planned("train.py").stop_signal == signal.SIGTERM
    job = planned("--signals-to-handle=SIGHUP,SIGINT", "train.py")
    assert told(job, 0)["stop_signal"] == signal.SIGHUP


def test_exports(planned: Plan) -> None:
    here = {"NCCL_DEBUG": "INFO", "NCCL_X": "1", "PATH": "/bin", "OTHER": "x"}
    job = planned("--export=NCCL_*,PATH,A=b=c,,d,E=", "train.py", **here)
    assert dict(job.exports) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_X": "1",
        "PATH": "/bin",
        "A": "b=c,d",
        "E": "",
    }


def test_dry_run(planned: Plan) -> None:
    job = planned("--export=A=b c", "train.py", "x y", lines=("a slots=4", "localhost"))
    text = describe(job)
    assert text.startswith("2 hosts would start an agent each; nothing has been started.")
    assert "Node 0, a: 4 workers\n  ssh -o BatchMode=yes" in text
    assert "Node 1, localhost: 1 worker\n" in text
    assert "train.py 'x y'\n  A\n" in text
    assert "b c" not in text


def test_what_is_too_long_for_a_list_of_hosts_is_none(planned: Plan) -> None:
    with pytest.raises(ConfigError, match="longer than any list of hosts"):
        planned("train.py", lines=("# " + "a" * (4 << 20),))


def test_what_is_torshruns_own_is_not_exported(planned: Plan) -> None:
    environ = {"TORSH_SECRET": "an example of a secret", "TORSH_TUNING": "1", "TORSH_ROLE": "r"}
    exports = planned("--export=TORSH_*", "train.py", **environ).exports
    assert exports == {"TORSH_TUNING": "1"}
    with pytest.raises(ConfigError, match="TORSH_SECRET belongs to torshrun"):
        planned("--export=TORSH_SECRET", "train.py", **environ)
    with pytest.raises(
        ConfigError, match=r"TORSH_NNODES belongs to torshrun.* environment: in a fil"
    ):
        planned("--export=TORSH_NNODES=1", "train.py", **environ)


def test_the_end_of_the_time_comes_no_later_for_hosts_that_take_long_to_start(
    planned: Plan,
) -> None:
    job = planned("--time-limit=10m", "train.py")
    entries = job.told(1, job.hosts, Address("10.0.0.1", 4000), 40.5)["entries"]
    assert float(entries["time_limit"][0]) == 559.5
    late = job.told(1, job.hosts, Address("10.0.0.1", 4000), 700)["entries"]
    assert float(late["time_limit"][0]) == 0
    without = planned("train.py")
    assert without.told(1, job.hosts, None, 40.5)["entries"]["time_limit"][0] is None


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--standalone", "t.py"], "--standalone: not with --hostfile"),
        (["--node-rank=1", "t.py"], "--node-rank: not with --hostfile"),
        (["--local-addr=x", "t.py"], "--local-addr: not with --hostfile"),
        (["--events=-", "t.py"], "--events: lines of several hosts would mix"),
        (["--nnodes=3", "t.py"], "--nnodes: 3 nodes need as many hosts, and there are 2"),
        (["--nnodes=3:4", "t.py"], "--nnodes: 3 nodes need as many hosts"),
        (["--nproc-per-node=3", "t.py"], "--nproc-per-node: 3 is more than"),
        (["--include=z", "t.py"], "'z' is not a host of the file"),
        (["--export=NOT_SET", "t.py"], "--export: NOT_SET is not set here: give NOT_SET=VALUE"),
        (["--export=A-B=1", "t.py"], "--export: 'A-B=1' is not"),
        (["--ssh-command=ssh 'x", "t.py"], "--ssh-command: it cannot be split"),
        (["--rdzv-backend=etcd", "t.py"], "--rdzv-endpoint"),
        (["--rdzv-conf=ttl=0.1", "t.py"], "--rdzv-conf: a node cannot count as lost"),
        (["--rdzv-backend=static", "--nnodes=1:2", "t.py"], "their number is fixed"),
        ([], "SCRIPT is missing"),
    ],
)
def test_what_is_refused(planned: Plan, argv: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        planned(*argv, lines=("a slots=2", "b"))
    assert said in str(error.value)


def test_a_hostfile_that_is_not_there(planned: Plan) -> None:
    with pytest.raises(ConfigError, match="--hostfile: none cannot be read: No such file"):
        planned("--hostfile=none", "train.py")
