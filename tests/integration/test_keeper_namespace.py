"""Workers in a PID namespace of their own: as root, as somebody else, and where it is forbidden."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import marked, soon

from torsh_runtime.errors import ConfigError
from torshrun.workers.keeper import Keeper

# Starts a keeper in a namespace, a worker in that, and prints what it sees.
AGENT = """
import os, select, sys
from torshrun.workers import keeper as k
from torsh_runtime.errors import ConfigError
try:
    keeper = k.Keeper.start(sys.argv[1], namespace=True)
except ConfigError as error:
    print("refused:", error, flush=True)
    raise SystemExit(2)
code = '''
import os, subprocess, time
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    for fd in range(3):
        os.close(fd)
    time.sleep(600)
print("worker", os.getpid(), os.getppid(), os.getuid(), os.getgid(), flush=True)
print("link", os.readlink("/proc/self"), "sees", flush=True, *sorted(
    int(name) for name in os.listdir("/proc") if name.isdecimal()))
time.sleep(600)
'''
argv = [sys.executable, "-S", "-c", code]
keeper.spawn(0, argv, os.environ, "", (0, 1, 2))
spawned = []
while not spawned:
    select.select([keeper], [], [], 10)
    spawned = keeper.receive()
print("spawned", keeper.pid, spawned[0].pid, flush=True)
sys.stdin.read()
print("closed", keeper.close(10), flush=True)
"""


# Goes on without CAP_SYS_ADMIN, if it has it.
UNPRIVILEGED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Agent:
    """A process that keeps one worker in a namespace."""

    def __init__(self, scratch: Path, *python_options: str) -> None:
        self.mark = os.urandom(8).hex()
        self.scratch = scratch
        scratch.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-P", *python_options, "-c", AGENT, str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "MARK": self.mark},
        )

    def lines(self, count: int) -> dict[str, list[str]]:
        """The next lines, by their first word."""
        assert self.process.stdout
        lines = [self.process.stdout.readline().split() for _ in range(count)]
        found = {words[0]: words[1:] for words in lines if words}
        if "refused:" in found:
            pytest.skip(" ".join(found["refused:"]))
        assert len(found) == count, found
        return found

    def kill_both(self, keeper: int) -> None:
        """Stopped first, so that neither does anything after the other's death."""
        for signo in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (keeper, self.process.pid):
                os.kill(pid, signo)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=10)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path / "scratch")
    yield made
    made.end()
    assert soon(lambda: not marked(made.mark)), marked(made.mark)


@pytest.fixture
def somebody(tmp_path: Path) -> Iterator[Agent]:
    """An agent without the privilege."""
    made = Agent(tmp_path / "scratch", "-c", UNPRIVILEGED, sys.executable, "-P")
    yield made
    made.end()
    assert soon(lambda: not marked(made.mark)), marked(made.mark)


def test_workers_see_themselves_only_and_the_agent_their_pids_outside(agent: Agent) -> None:
    found = agent.lines(3)
    pid, parent, uid, gid = map(int, found["worker"])
    link, _, *seen = found["link"]
    keeper, outside = map(int, found["spawned"])
    assert (pid, parent, uid, gid) == (2, 1, os.getuid(), os.getgid())
    assert int(link) == pid
    assert 2 <= len(seen) <= 4
    assert {"1", str(pid)} <= set(seen)
    tree = marked(agent.mark)
    assert tree[keeper] == agent.process.pid
    assert tree[outside] == keeper


def test_agent_and_keeper_killed_at_once_leave_no_process(agent: Agent) -> None:
    keeper = int(agent.lines(3)["spawned"][0])
    assert soon(lambda: len(marked(agent.mark)) >= 4)  # agent, keeper, worker, daemon
    agent.kill_both(keeper)
    agent.end()
    assert soon(lambda: not marked(agent.mark)), marked(agent.mark)


def test_closing_ends_all_and_removes_the_scratch_directory(agent: Agent) -> None:
    agent.lines(3)
    out, _ = agent.process.communicate("", timeout=20)
    assert out == "closed True\n"
    assert not marked(agent.mark)
    assert not agent.scratch.exists()


def user_namespace(pid: int) -> Path:
    return Path(f"/proc/{pid}/ns/user").readlink()


def test_without_privileges_a_user_namespace_does_it(somebody: Agent) -> None:
    found = somebody.lines(3)
    assert [*map(int, found["worker"])] == [2, 1, os.getuid(), os.getgid()]
    keeper, outside = map(int, found["spawned"])
    assert user_namespace(keeper) != user_namespace(os.getpid())
    assert marked(somebody.mark)[outside] == keeper
    somebody.kill_both(keeper)
    somebody.end()
    assert soon(lambda: not marked(somebody.mark)), marked(somebody.mark)


# Goes where no namespace can be made any more, as user 1000 of a user namespace.
FORBID = """
import ctypes, os, sys
uid, gid = os.getuid(), os.getgid()
if ctypes.CDLL(None).unshare(0x10000000):
    raise SystemExit(77)
for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"),
                   ("gid_map", f"1000 {gid} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
with open("/proc/sys/user/max_user_namespaces", "w") as file:
    file.write("0")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_where_it_is_forbidden_nothing_starts_and_the_reason_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORBID, "-P", "-c", AGENT, str(tmp_path / "none")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if ended.returncode == 77:
        pytest.skip("user namespaces are forbidden here")
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout.startswith("refused: cannot give the workers a PID namespace: ")
    assert "sysctl -w user.max_user_namespaces=10000" in ended.stdout


def test_a_start_that_fails_leaves_no_process_and_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The program that is started is no keeper; the fixture looks for what is left."""
    monkeypatch.setattr("torshrun.workers.keeper.find_keeper", lambda: "/bin/false")
    with pytest.raises(ConfigError, match="PID namespace"):
        Keeper.start(str(tmp_path), namespace=True)


def test_the_agents_mounts_stay_as_they_are(agent: Agent) -> None:
    """The namespace's /proc is not mounted over that of the machine."""
    before = Path("/proc/self/mountinfo").read_text().count(" - proc ")
    agent.lines(3)
    time.sleep(0.05)
    assert Path("/proc/self/mountinfo").read_text().count(" - proc ") == before
    assert Path("/proc/self").readlink() == Path(str(os.getpid()))
