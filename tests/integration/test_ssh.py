"""Jobs that are started on other hosts by a real ssh and real sshds."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.blocks import shown
from support.hosts import needs_hosts
from support.launcher import Launcher
from support.processes import soon
from support.ssh_jobs import SshJob
from support.sshds import GREETING, PORT, needs_sshd

from torshrun import exit_codes

pytestmark = [needs_hosts, needs_sshd, pytest.mark.netns, pytest.mark.ssh]


FACTS = """
import json
here = {"argv": sys.argv[1:], "cwd": os.getcwd(), "host": os.environ["NUMBER"]}
names = "WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR GIVEN HERE_1 HERE_2 TORSH_SECRET"
here |= {name: os.environ.get(name) for name in names.split()}
with open(f"facts_{rank}", "w") as file:
    json.dump(here, file)
"""


def facts(launcher: Launcher, rank: int) -> dict[str, object]:
    read: dict[str, object] = json.loads((launcher.folder / f"facts_{rank}").read_text())
    return read


def test_each_worker_has_its_place_and_exactly_what_was_given(job: SshJob) -> None:
    script = job.launcher.script(FACTS)
    job.launcher.environ |= {"HERE_1": "one", "HERE_2": "a b"}
    arguments = ["a b", 'it\'s "so"', "$HOME `id` \\", "two\nlines", "é–\udcff", "--help", ""]
    hosts = job.site.hostfile("# two of them", "n1 slots=2", "n2:1")
    exports = "--export=HERE_*,GIVEN=x,,y=z"
    code, output = job.run(exports, script, *arguments, hostfile=hosts)
    assert code == 0, output
    assert GREETING not in output
    found = [facts(job.launcher, rank) for rank in range(3)]
    assert [each["host"] for each in found] == ["1", "1", "2"]
    assert [each["NODE_RANK"] for each in found] == ["0", "0", "1"]
    for each in found:
        assert each["argv"] == arguments
        assert each["cwd"] == str(job.launcher.folder)
        assert each["WORLD_SIZE"] == "3"
        assert each["MASTER_ADDR"] == job.site.sshds[0].host.ipv4
        assert [each["HERE_1"], each["HERE_2"], each["GIVEN"]] == ["one", "a b", "x,y=z"]
        assert each["TORSH_SECRET"] is None


def test_lines_are_whole_and_begin_with_their_host(job: SshJob) -> None:
    script = job.launcher.script("""
        for number in range(3000):
            print("x" * 100, number, flush=number % 7 == 0)
        print("unfinished", end="", flush=True)
    """)
    code, output = job.run("--nproc-per-node=2", script)
    assert code == 0, output
    lines = re.findall(r"^(n\d): \[(\d)\] x{100} (\d+)$", output, re.MULTILINE)
    for rank in "0123":
        mine = [(host, number) for host, each, number in lines if each == rank]
        assert mine == [(f"n{int(rank) // 2 + 1}", str(number)) for number in range(3000)]
    assert len(re.findall(r"^n\d: \[\d\] unfinished$", output, re.MULTILINE)) == 4


def test_the_secret_is_in_no_list_of_processes(job: SshJob) -> None:
    secret = "a secret that is easy to find 0123456789"
    (job.launcher.folder / "secret").write_text(secret)
    (job.launcher.folder / "secret").chmod(0o600)
    script = job.launcher.script("""
        open(f"up_{rank}", "w").close()
        while not os.path.exists("go"):
            time.sleep(0.01)
    """)
    node = job.start("--secret-file=secret", "--require-secret", script)
    job.launcher.wait_for("up_0", "up_1")
    texts = []
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                texts.append((process / name).read_bytes())
            except OSError:  # it has ended
                continue
    job.launcher.make("go")
    assert node.end()[0] == 0
    assert any(b"torshrun.ssh.remote" in text for text in texts)
    assert not any(secret.encode() in text for text in texts)


def test_the_guide(job: SshJob) -> None:
    """Its hostfile, script and commands, literally, with the workers' lines that it shows."""
    (job.launcher.folder / "hosts.txt").write_text(shown("docs/ssh.md", "# hosts.txt"))
    (job.launcher.folder / "train.py").write_text(shown("docs/ssh.md", "# train.py"))
    shutil.copy(job.site.folder / "config", job.launcher.folder / "cluster.config")
    blocks = (
        shown("docs/ssh.md", "torshrun --hostfile hosts.txt train.py"),
        shown("docs/ssh.md", "echo localhost slots=4"),
        shown("docs/ssh.md", "torshrun --hostfile hosts.txt --include"),
        shown("docs/ssh.md", "torshrun --hostfile hosts.txt --nnodes"),
        shown("docs/ssh.md", "torshrun --hostfile hosts.txt --export"),
        shown("docs/ssh.md", "torshrun --hostfile hosts.txt --ssh-command"),
    )
    commands = "".join(blocks).splitlines()
    assert len(commands) == 9
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {**job.launcher.environ, "PATH": path, "TORSH_SSH_COMMAND": job.site.command}

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = [*job.site.head.command, "sh", "-c", command]
        folder = job.launcher.folder
        return subprocess.run(
            words, cwd=folder, env=environ, capture_output=True, text=True, timeout=120
        )

    with ThreadPoolExecutor(3, "guide") as pool:  # they wait most of the time
        done = list(pool.map(run, commands))
    assert [each.returncode for each in done] == [0] * 9, done
    output = shown("docs/ssh.md", "node1: torshrun:")
    workers = [line for line in output.splitlines() if "of all ranks" in line]
    assert sorted(done[0].stdout.splitlines()) == sorted(workers)


def test_a_worker_that_fails_ends_the_job_with_its_code(job: SshJob) -> None:
    script = job.launcher.script("""
        if rank == 1:
            sys.exit("no more") if sys.argv[1:] else sys.exit(7)
        time.sleep(60)
    """)
    code, output = job.run(script)
    assert code == 7
    assert re.search(r"^n2: torshrun: rank 1 failed first: exit code 7", output, re.MULTILINE)


def test_a_worker_that_is_killed_starts_again_and_the_job_succeeds(job: SshJob) -> None:
    script = job.launcher.script("""
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL) if rank == 1 else time.sleep(60)
        print("second start")
    """)
    code, output = job.run("--max-restarts=1", script)
    assert code == 0, output
    assert len(re.findall(r"^n\d: \[\d\] second start$", output, re.MULTILINE)) == 2


UNTIL_TOLD = """
signal.signal(signal.SIGUSR1, lambda *_: print("noticed", flush=True))
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("signo", "code"),
    [(signal.SIGINT, 128 + signal.SIGINT), (signal.SIGTERM, exit_codes.PREEMPTED)],
)
def test_signals_reach_all_hosts(job: SshJob, signo: signal.Signals, code: int) -> None:
    node = job.start(job.launcher.script(UNTIL_TOLD))
    for host in ("n1", "n2"):
        node.wait_for(rf"{host}: \[\d\] ready")
    node.send(signal.SIGUSR1)
    for host in ("n1", "n2"):
        node.wait_for(rf"{host}: \[\d\] noticed")
    node.send(signo)
    assert node.end()[0] == code


def test_the_end_of_the_time_comes_on_all_hosts(job: SshJob) -> None:
    limits = ("--time-limit=12", "--end-notice=8", "--shutdown-timeout=1")
    code, output = job.run(*limits, job.launcher.script(UNTIL_TOLD))
    assert code == exit_codes.PREEMPTED, output
    for host in ("n1", "n2"):
        assert re.search(rf"^{host}: \[\d\] noticed$", output, re.MULTILINE), output


NESTED = """
import subprocess
given = [name for name in os.environ if name.startswith(("TORSH_HOST", "TORSH_INC", "PET_"))]
nested = subprocess.run(
    [sys.executable, "-m", "torshrun", "--no-python", "echo", "nested"],
    capture_output=True, text=True, timeout=60,
)
print(given, nested.stdout.strip(), nested.returncode)
"""


def test_a_torshrun_in_a_worker_does_not_start_all_hosts_again(job: SshJob) -> None:
    hosts = job.site.hostfile("localhost", "n1")
    variables = {"TORSH_HOSTFILE": hosts, "TORSH_INCLUDE": "localhost", "PET_MAX_RESTARTS": "1"}
    job.launcher.environ |= variables
    code, output = job.run(job.launcher.script(NESTED), hostfile=hosts)
    assert code == 0, output
    assert re.findall(r"^.*nested.*$", output, re.MULTILINE) == ["localhost: [0] [] [0] nested 0"]


def test_an_interrupt_before_the_job_has_begun_ends_it(job: SshJob, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\ntouch {tmp_path}/called\nsleep 3\nexec {job.site.command} "$@"\n')
    slow.chmod(0o755)
    node = job.start(job.launcher.script(UNTIL_TOLD), ssh=str(slow))
    assert soon((tmp_path / "called").exists, 30)
    node.send(signal.SIGINT)
    code, output = node.end()
    assert code == 128 + signal.SIGINT
    assert "got SIGINT before the job began" in output


def test_connections_may_be_shared(job: SshJob, tmp_path: Path) -> None:
    """The master connections stay when the job has ended, as ssh's configuration wants it."""
    path = f"-o ControlMaster=auto -o ControlPersist=60 -o ControlPath={tmp_path}/%n"
    shared = f"{job.site.command} {path}"
    script = job.launcher.script("print('here')")
    try:
        for _ in range(2):
            code, output = job.run(script, ssh=shared)
            assert code == 0, output
            assert sorted(re.findall(r"n\d: \[\d\] here", output)) == [
                "n1: [0] here",
                "n2: [1] here",
            ]
        assert not job.site.is_idle()
    finally:
        for host in ("n1", "n2"):
            words = [*job.site.head.command, *shared.split(), "-O", "exit", host]
            subprocess.run(words, check=True, capture_output=True, timeout=30)


@pytest.fixture
def other_version(tmp_path: Path) -> str:
    """A Python with a torshrun of another version."""
    facts = tmp_path / "site" / "torshrun-99.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torshrun\nVersion: 99.0\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def test_hosts_have_to_have_the_same_version(job: SshJob, other_version: str) -> None:
    code, output = job.run(f"--remote-python={other_version}", job.launcher.script(""))
    assert code == exit_codes.RENDEZVOUS
    assert re.search(r"n1 could not be started: torshrun has version 99\.0 there", output)
    assert re.search(r"n2 could not be started: torshrun has version 99\.0 there", output)


@pytest.mark.parametrize(
    ("host", "change", "said"),
    [
        ("no-such-host.invalid", "", "Could not resolve hostname.*: the name is not known"),
        ("n2 port=2223", "", "Connection refused.*: no sshd listens there"),
        ("n2", "/key=/stranger", "Permission denied.*: no key of yours"),
        ("n2", "/known_hosts=/none", "Host key verification failed.*connect once"),
        ("n2", "IdentitiesOnly=NoSuchOption", "Bad configuration option"),
    ],
    ids=["name", "port", "key", "host key", "option"],
)
def test_a_host_that_cannot_be_reached_is_named_with_what_to_do(
    job: SshJob, host: str, change: str, said: str
) -> None:
    ssh = job.site.command_with(*change.split("=")) if change else ""
    code, output = job.run(job.launcher.script(""), hostfile=job.site.hostfile("n1", host), ssh=ssh)
    assert code == exit_codes.RENDEZVOUS
    assert re.search(rf"{host.split()[0]} could not be started: .*{said}", output), output
    assert "the job needs 2 hosts" in output


@pytest.mark.parametrize(
    ("program", "said"),
    [("/no/python", "exit code 127.*--remote-python"), ("/usr/bin/env", "exit code 125")],
)
def test_a_host_without_that_python_is_named(job: SshJob, program: str, said: str) -> None:
    code, output = job.run(f"--remote-python={program}", job.launcher.script(""))
    assert code == exit_codes.RENDEZVOUS
    assert re.search(rf"n2 could not be started: .*{said}", output), output


def test_what_is_wrong_there_is_said_by_the_host(job: SshJob) -> None:
    code, output = job.run("no_such_script.py")
    assert code == exit_codes.USAGE
    assert re.search(r"n\d: torshrun: error: script no_such_script.py does not exist", output)
    assert "could not begin (exit code 2)" in output


def test_with_fewer_hosts_than_there_might_be(job: SshJob) -> None:
    hosts = job.site.hostfile("n1", "n2 port=2223", "localhost")
    script = job.launcher.script(
        "print(os.environ['WORLD_SIZE'], os.environ.get('CUDA_VISIBLE_DEVICES'))"
    )
    conf = "--rdzv-conf=last_call_timeout=1,ttl=3,join_timeout=20"
    code, output = job.run("--nnodes=1:3", conf, script, hostfile=hosts)
    assert code == 0, output
    assert "n2 could not be started: " in output
    assert "n1: [0] 2 None" in output
    assert re.search(r"localhost: \[\d\] 2 None", output)


def test_the_first_host_may_be_this_one_and_addresses_may_be_of_ipv6(job: SshJob) -> None:
    script = job.launcher.script("print(os.environ['MASTER_ADDR'])")
    head, other = job.site.head, job.site.sshds[1].host
    hosts = job.site.hostfile("localhost", f"root@[{other.ipv6}]:1 port={PORT}")
    code, output = job.run(script, hostfile=hosts)
    assert code == 0, output
    assert re.search(rf"^localhost: \[0\] {head.ipv6}$", output, re.MULTILINE)
    assert re.search(rf"^{other.ipv6}: \[1\] {head.ipv6}$", output, re.MULTILINE)
