"""Connections of jobs over ssh break in every way: nothing is left, and who broke is named."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from support.hosts import cut_off, needs_hosts, plug_in_again
from support.nodes import Node
from support.processes import soon
from support.ssh_jobs import SshJob
from support.sshds import needs_sshd

from torshrun import exit_codes
from torshrun.procfs import children

pytestmark = [needs_hosts, needs_sshd, pytest.mark.netns, pytest.mark.ssh]

STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.system("sleep 1000 &")
print("ready", flush=True)
time.sleep(1000)
"""
PATIENCE = 60.0


def started(job: SshJob, *options: str, hosts: Sequence[str] = ("n1", "n2")) -> Node:
    """A job whose workers run, and do not end because they are asked to."""
    script, hostfile = job.launcher.script(STUBBORN), job.site.hostfile(*hosts)
    node = job.start(*options, "--shutdown-timeout=1", script, hostfile=hostfile)
    for host in hosts:
        node.wait_for(rf"{host}: \[\d\] ready")
    return node


def kill_ssh(job: SshJob, node: Node) -> AbstractContextManager[None]:
    """That of the second host."""
    (pid,) = (pid for pid in children(node.process.pid) if "\0n2\0" in _arguments(pid))
    os.kill(pid, signal.SIGKILL)
    return nullcontext()


def _arguments(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def kill_agent(job: SshJob, node: Node) -> AbstractContextManager[None]:
    (pid,) = (pid for pid in job.processes(2) if "torshrun.ssh.remote" in _arguments(pid))
    os.kill(pid, signal.SIGKILL)
    return nullcontext()


@contextmanager
def cut_link(job: SshJob, node: Node) -> Iterator[None]:
    host = job.site.sshds[1].host
    cut_off(host)
    try:
        yield
    finally:
        plug_in_again(host)


@contextmanager
def stop_sshd(job: SshJob, node: Node) -> Iterator[None]:
    sshd = job.site.sshds[1]
    sshd.send(signal.SIGSTOP)
    try:
        yield
    finally:
        sshd.send(signal.SIGCONT)


@pytest.mark.parametrize("harm", [kill_ssh, kill_agent, cut_link])
def test_a_host_that_is_lost_ends_the_job_and_leaves_nothing(
    job: SshJob, harm: Callable[[SshJob, Node], AbstractContextManager[None]]
) -> None:
    node = started(job)
    with harm(job, node):
        assert soon(lambda: not job.processes(2), PATIENCE), job.processes(2)
        code, output = node.end(PATIENCE)
        assert not job.processes(1)
    assert code == exit_codes.LOST
    assert "n2 is lost: " in output
    assert "the job needs 2 hosts: stopping the other 1" in output


def test_a_host_that_hears_nothing_more_ends_by_itself(job: SshJob) -> None:
    """It could go on: it needs no other host, and its own network is whole."""
    node = started(job, "--nnodes=1:2", hosts=["n2"])
    with stop_sshd(job, node):
        assert soon(lambda: not job.processes(2), PATIENCE), job.processes(2)
        code, output = node.end(PATIENCE)
    assert code == exit_codes.LOST
    assert "n2 is lost: " in output


def test_who_insists_need_not_wait_for_a_host_that_hangs(job: SshJob) -> None:
    node = started(job, "--rdzv-conf=ttl=30,last_call_timeout=1", "--nnodes=1:2", hosts=["n2"])
    with stop_sshd(job, node):
        for _ in range(3):
            node.send(signal.SIGINT)
            time.sleep(0.2)
        code, output = node.end(PATIENCE)
    assert code == 128 + signal.SIGINT
    assert "these hosts are left to end on their own: n2" in output
    assert soon(lambda: not job.processes(2), PATIENCE), job.processes(2)


def test_when_torshrun_is_killed_nothing_is_left_anywhere(job: SshJob) -> None:
    node = started(job, hosts=["localhost", "n2"])
    node.send(signal.SIGKILL)
    assert soon(lambda: not job.launcher.left_behind(), PATIENCE), job.launcher.left_behind()
    assert soon(job.site.is_idle)


def test_when_torshrun_is_killed_and_the_link_is_cut_nothing_is_left(job: SshJob) -> None:
    node = started(job)
    with cut_link(job, node):
        node.send(signal.SIGKILL)
        assert soon(lambda: not job.launcher.left_behind(), PATIENCE), job.launcher.left_behind()


def test_an_elastic_job_goes_on_without_a_host_that_is_lost(job: SshJob) -> None:
    script = job.launcher.script("""
        print("ready", os.environ["WORLD_SIZE"], flush=True)
        if os.environ["WORLD_SIZE"] == "2":
            time.sleep(1000)
    """)
    node = job.start("--nnodes=1:2", "--shutdown-timeout=1", script)
    node.wait_for(r"n2: \[\d\] ready 2")
    kill_agent(job, node)
    code, output = node.end(PATIENCE)
    assert code == 0, output
    assert "n2 is lost: " in output
    assert "n1: [0] ready 1" in output


def test_a_reader_who_pauses_stalls_workers_and_breaks_no_connection(job: SshJob) -> None:
    script = job.launcher.script("""
        for number in range(40_000):
            print(number, "x" * 100)
        open(f"done_{rank}", "w").close()
    """)
    within = job.site.head.command
    process = job.launcher.start(*job.options(), script, within=within)
    time.sleep(8)  # more than twice the ttl
    assert process.poll() is None
    assert not (job.launcher.folder / "done_0").exists()
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    for host, rank in (("n1", 0), ("n2", 1)):
        numbers = re.findall(rf"^{host}: \[{rank}\] (\d+) x{{100}}$", out, re.MULTILINE)
        assert numbers == list(map(str, range(40_000)))
