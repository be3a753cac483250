"""The keeper's protocol, spoken with the compiled keeper and real processes."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.keeper_talk import Conversation
from support.much_memory import HOLD
from support.processes import marked, soon

from torsh_runtime.errors import ConfigError
from torshrun.workers import keeper as k

SLEEP = ["/bin/sleep", "600"]
DIES_SLOWLY = f"{HOLD}\nheld = hold()\nprint(flush=True)\nimport time\ntime.sleep(600)"
ATTEMPTS = 5
LEAVES_A_DAEMON = "import os, time\nif os.fork() == 0:\n os.setsid()\n os.fork()\n time.sleep(600)"


@pytest.fixture
def mark() -> str:
    """Stands in the environment of all processes of one test."""
    return os.urandom(8).hex()


@pytest.fixture(params=[False, True], ids=["plain", "namespace"])
def talk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Conversation]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    try:
        made = Conversation(scratch, request.param)
    except ConfigError as error:
        pytest.skip(str(error))
    yield made
    assert made.keeper.close(10)


def test_an_exit_has_its_status(talk: Conversation) -> None:
    talk.spawn(5, ["/bin/sh", "-c", "exit 3"])
    (exited,) = talk.until(k.Exited)
    assert isinstance(exited, k.Exited)
    assert (exited.worker_id, exited.status) == (5, 3 << 8)
    assert [type(report) for report in talk.reports] == [k.Spawned, k.Exited]


@pytest.mark.parametrize(
    ("argv", "cwd", "error", "stage"),
    [
        (["/no/such/program"], "", errno.ENOENT, "exec"),
        (["/etc/passwd"], "", errno.EACCES, "exec"),
        (["/bin/true"], "/no/such/directory", errno.ENOENT, "chdir"),
    ],
)
def test_a_failed_spawn_tells_why_and_only_that(
    talk: Conversation, argv: list[str], cwd: str, error: int, stage: str
) -> None:
    talk.spawn(1, argv, cwd)
    assert talk.until(k.SpawnFailed) == [k.SpawnFailed(1, error, stage)]
    talk.keeper.sweep(1, 5)
    talk.until(k.Swept)
    assert not talk.of(k.Exited)


@pytest.mark.parametrize(
    ("argv", "cwd", "variables", "named"),
    [
        (["/bin/true", "a\0b"], "", {}, "argument 1"),
        (["/bin/true"], "/\0", {}, "working directory"),
        (["/bin/true"], "", {"TOKEN": "hush\0PYTHONSTARTUP=/x"}, "'TOKEN'"),
        (["/bin/true"], "", {"TOKEN": "hush\ud800"}, "'TOKEN'"),
        (["/bin/true"], "", {"TO=KEN": "hush"}, "'TO=KEN'"),
    ],
)
def test_strings_that_no_program_can_have_are_never_sent(
    talk: Conversation, argv: list[str], cwd: str, variables: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as raised:
        talk.spawn(1, argv, cwd, **variables)
    assert "hush" not in str(raised.value)
    talk.spawn(2, ["/bin/true"])
    talk.until(k.Exited)
    assert talk.of(k.Spawned) == talk.reports[:1]


def test_a_request_with_more_or_less_than_it_announces_is_refused(
    talk: Conversation, tmp_path: Path
) -> None:
    """One string more is what an environment variable would be injected by."""
    strings = [b"", b"/bin/touch", os.fsencode(tmp_path / "made"), b"A=b", b"INJECTED=x"]
    for argc, envc in ((2, 1), (2, 3), (1, 1), (0, 4), (4, 4)):
        head = struct.pack("=6I", 10 * argc + envc, 0, argc, envc, 0, 0)
        talk.keeper._send(b"S" + head + b"".join(text + b"\0" for text in strings))
    refused = talk.until(k.SpawnFailed, 5)
    assert {(r.errno, r.stage) for r in refused if isinstance(r, k.SpawnFailed)} == {
        (errno.EBADMSG, "request")
    }
    assert talk.reports == refused
    assert not (tmp_path / "made").exists()


def test_a_worker_gets_a_clean_start(talk: Conversation) -> None:
    """Its own session and group, default signals, and no descriptors but its own."""
    code = (
        "import os, signal\n"
        "assert os.getsid(0) == os.getpgid(0) == os.getpid()\n"
        "assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL\n"
        "assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL\n"
        "assert set(os.listdir('/proc/self/fd')) <= {'0', '1', '2', '3'}\n"
        "assert os.environ == {'ONLY': 'this', 'LC_CTYPE': 'C.UTF-8'}, os.environ\n"
        "assert os.getcwd() == '/usr'\n"
    )
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    talk.spawn(0, [sys.executable, "-c", code], "/usr", ONLY="this", LC_CTYPE="C.UTF-8")
    (exited,) = talk.until(k.Exited)
    os.close(leaked)
    assert isinstance(exited, k.Exited)
    assert exited.status == 0


def test_a_worker_may_share_the_keepers_session(talk: Conversation) -> None:
    code = "import os; assert os.getsid(0) == os.getppid() and os.getpgid(0) == os.getpid()"
    talk.spawn(0, [sys.executable, "-c", code], shares_session=True)
    (exited,) = talk.until(k.Exited)
    assert isinstance(exited, k.Exited)
    assert exited.status == 0


@pytest.mark.parametrize("shares_session", [False, True])
@pytest.mark.parametrize("parent", ["none", "plain", "group"])
def test_a_worker_notes_its_end_as_its_own(
    talk: Conversation, tmp_path: Path, parent: str, shares_session: bool
) -> None:
    """And a process that it has started, maybe in a group of its own, does not."""
    environ = {
        "PYTHONPATH": str(Path(k.__file__).with_name("startup")),
        "TORSH_STACK_FILE": str(tmp_path / "stack"),
    }
    script = [sys.executable, "-c", "raise ValueError"]
    group = ", process_group=0" if parent == "group" else ""
    runs = f"import subprocess, sys; subprocess.run(sys.argv[1:]{group})"
    starter = [] if parent == "none" else [sys.executable, "-I", "-c", runs]  # without the hook
    talk.spawn(0, [*starter, *script], shares_session=shares_session, **environ)
    talk.until(k.Exited)
    (note,) = map(json.loads, (tmp_path / "stack_end").read_text().splitlines())
    assert (note["errors"], note["own"]) == (["ValueError"], parent == "none")


def test_signals_reach_the_group_of_one_worker_or_all(talk: Conversation) -> None:
    for worker_id in range(3):
        talk.spawn(worker_id, ["/bin/sh", "-c", "sleep 600; true"])
    talk.until(k.Spawned, 3)
    talk.keeper.signal(1, signal.SIGUSR1)
    (exited,) = talk.until(k.Exited)
    assert isinstance(exited, k.Exited)
    assert (exited.worker_id, exited.status) == (1, signal.SIGUSR1)
    talk.keeper.signal(k.ALL, signal.SIGTERM)
    assert {r.worker_id for r in talk.until(k.Exited, 3) if isinstance(r, k.Exited)} == {0, 1, 2}


def test_a_notice_reaches_the_workers_alone_and_not_what_they_have_started(
    talk: Conversation, mark: str
) -> None:
    code = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(child.poll() is not None))\n"
        "child = subprocess.Popen(['/bin/sleep', '600'])\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    read, write = os.pipe()
    talk.keeper.spawn(0, [sys.executable, "-c", code], {"MARK": mark}, "", (0, write, 2))
    os.close(write)
    with os.fdopen(read) as out:
        assert out.readline() == "up\n"
        talk.keeper.signal(k.ALL, signal.SIGUSR1, alone=True)
        (exited,) = talk.until(k.Exited)
        assert isinstance(exited, k.Exited)
        assert exited.status == 0
        assert len(marked(mark)) == 1
        talk.keeper.sweep(1, 5)
        talk.until(k.Swept)


def test_a_signal_right_behind_the_spawn_is_not_lost(talk: Conversation) -> None:
    for worker_id in range(200):
        talk.spawn(worker_id, SLEEP)
        talk.keeper.signal(worker_id, signal.SIGTERM)
    exits = [r for r in talk.until(k.Exited, 200) if isinstance(r, k.Exited)]
    assert {r.status for r in exits} == {signal.SIGTERM}


def test_a_sweep_ends_daemons_too(talk: Conversation, mark: str) -> None:
    for worker_id in range(3):
        talk.spawn(worker_id, [sys.executable, "-c", LEAVES_A_DAEMON], MARK=mark)
    talk.until(k.Exited, 3)
    assert soon(lambda: len(marked(mark)) == 6)
    talk.keeper.sweep(9, 5)
    (swept,) = talk.until(k.Swept)
    assert swept == k.Swept(9, ())
    assert not marked(mark)


def test_exits_are_reported_before_the_sweep(talk: Conversation) -> None:
    for worker_id in range(4):
        talk.spawn(worker_id, SLEEP)
    talk.keeper.sweep(1, 5)
    talk.until(k.Swept)
    assert len(talk.of(k.Exited)) == 4
    assert isinstance(talk.reports[-1], k.Swept)


@pytest.mark.parametrize("counts_suspend", [False, True])
def test_the_dead_man_kills_all_and_reports(
    talk: Conversation, mark: str, counts_suspend: bool
) -> None:
    talk.spawn(0, [sys.executable, "-c", LEAVES_A_DAEMON], MARK=mark)
    talk.spawn(1, SLEEP, MARK=mark)
    talk.until(k.Exited)
    talk.arm(0.1, counts_suspend)
    assert talk.until(k.DeadManFired) == [k.DeadManFired()]
    talk.until(k.Exited, 2)
    assert soon(lambda: not marked(mark))


def test_workers_can_be_started_after_the_dead_man_has_fired(talk: Conversation) -> None:
    talk.spawn(0, SLEEP)
    talk.arm(0.05)
    talk.until(k.DeadManFired)
    talk.keeper.sweep(1, 5)
    talk.until(k.Swept)
    talk.spawn(1, ["/bin/true"])
    assert [r.status for r in talk.until(k.Exited, 2) if isinstance(r, k.Exited)] == [9, 0]


@pytest.mark.parametrize("first", [False, True])
def test_a_dead_man_that_is_armed_again_or_disarmed_does_not_fire(
    talk: Conversation, first: bool
) -> None:
    """The clock may change from one time to the next."""
    talk.spawn(0, SLEEP)
    for turn in range(5):
        talk.arm(0.3, first ^ bool(turn % 2))
        time.sleep(0.1)
    talk.keeper.arm(0, not first)
    time.sleep(0.5)
    assert [type(r) for r in talk.reports + talk.keeper.receive()] == [k.Spawned]


@pytest.mark.parametrize("counts_suspend", [False, True])
def test_a_renewal_that_waits_in_the_socket_counts_before_the_timer(
    talk: Conversation, counts_suspend: bool
) -> None:
    talk.spawn(0, SLEEP)
    talk.until(k.Spawned)
    talk.arm(0.3, counts_suspend)
    os.kill(talk.keeper.pid, signal.SIGSTOP)
    time.sleep(0.5)
    talk.arm(30, counts_suspend)
    os.kill(talk.keeper.pid, signal.SIGCONT)
    talk.keeper.signal(0, signal.SIGTERM)
    talk.until(k.Exited)
    assert not talk.of(k.DeadManFired)


def test_an_agent_that_was_frozen_with_its_keeper_has_a_moment_to_renew(
    talk: Conversation,
) -> None:
    talk.spawn(0, SLEEP)
    talk.until(k.Spawned)
    talk.arm(0.1)
    os.kill(talk.keeper.pid, signal.SIGSTOP)
    time.sleep(1.3)
    os.kill(talk.keeper.pid, signal.SIGCONT)
    time.sleep(0.1)
    talk.arm(30)
    talk.keeper.signal(0, signal.SIGTERM)
    talk.until(k.Exited)
    assert not talk.of(k.DeadManFired)


def test_the_moment_ends(talk: Conversation, mark: str) -> None:
    talk.spawn(0, SLEEP, MARK=mark)
    talk.until(k.Spawned)
    talk.arm(0.1)
    os.kill(talk.keeper.pid, signal.SIGSTOP)
    time.sleep(1.3)
    os.kill(talk.keeper.pid, signal.SIGCONT)
    talk.until(k.DeadManFired)
    assert soon(lambda: not marked(mark))


PRINT_CPUS = "import os; raise SystemExit(0 if os.sched_getaffinity(0) == {%d} else 1)"


def test_a_worker_runs_on_its_processors_only(talk: Conversation) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for worker_id, cpu in enumerate(allowed):
        talk.spawn(worker_id, [sys.executable, "-c", PRINT_CPUS % cpu], cpus={cpu})
    exits = talk.until(k.Exited, len(allowed))
    assert {r.status for r in exits if isinstance(r, k.Exited)} == {0}
    assert sorted(os.sched_getaffinity(talk.keeper.pid)) == allowed


def test_without_processors_a_worker_has_all_of_its_parent(talk: Conversation) -> None:
    code = f"import os; raise SystemExit(os.sched_getaffinity(0) != {os.sched_getaffinity(0)})"
    talk.spawn(0, [sys.executable, "-c", code])
    (exited,) = talk.until(k.Exited)
    assert isinstance(exited, k.Exited)
    assert exited.status == 0


def test_processors_that_are_not_there_fail_the_spawn(talk: Conversation) -> None:
    talk.spawn(3, SLEEP, cpus=[8000])
    assert talk.until(k.SpawnFailed) == [k.SpawnFailed(3, errno.EINVAL, "affinity")]


def test_a_keeper_without_room_for_descriptors_fails_that_spawn_only(talk: Conversation) -> None:
    talk.spawn(0, SLEEP)
    talk.until(k.Spawned)
    before = resource.prlimit(talk.keeper.pid, resource.RLIMIT_NOFILE)
    held = len(os.listdir(f"/proc/{talk.keeper.pid}/fd"))
    for worker_id in range(1, 7):  # room for 0 to 5 more descriptors
        room = (held + worker_id - 1, before[1])
        resource.prlimit(talk.keeper.pid, resource.RLIMIT_NOFILE, room)
        talk.spawn(worker_id, SLEEP)
        talk.until(k.SpawnFailed, worker_id)
    resource.prlimit(talk.keeper.pid, resource.RLIMIT_NOFILE, before)
    failed = [(r.errno, r.stage) for r in talk.of(k.SpawnFailed) if isinstance(r, k.SpawnFailed)]
    assert failed == [(errno.EMFILE, "file descriptors")] * 6
    talk.spawn(9, ["/bin/sh", "-c", "exit 3"])
    (exited,) = talk.until(k.Exited)
    assert isinstance(exited, k.Exited)
    assert (exited.worker_id, exited.status) == (9, 3 << 8)
    assert len(os.listdir(f"/proc/{talk.keeper.pid}/fd")) <= held


def test_workers_have_the_limit_on_descriptors_of_their_agent(talk: Conversation) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    code = f"import resource as r; raise SystemExit(r.getrlimit(r.RLIMIT_NOFILE) != {limit})"
    talk.spawn(0, [sys.executable, "-c", code])
    (exited,) = talk.until(k.Exited)
    assert isinstance(exited, k.Exited)
    assert exited.status == 0


def test_the_pids_reported_are_those_seen_here(talk: Conversation, mark: str) -> None:
    talk.spawn(0, SLEEP, MARK=mark)
    (spawned,) = talk.until(k.Spawned)
    assert isinstance(spawned, k.Spawned)
    assert marked(mark) == {spawned.pid: talk.keeper.pid}


def test_a_stopped_keeper_is_killed_when_it_is_closed(tmp_path: Path, mark: str) -> None:
    talk = Conversation(tmp_path / "none")
    talk.spawn(0, SLEEP, MARK=mark)
    talk.until(k.Spawned)
    os.kill(talk.keeper.pid, signal.SIGSTOP)
    assert not talk.keeper.close(0.2)
    assert soon(lambda: not marked(mark))


def test_a_big_environment_and_many_workers(talk: Conversation) -> None:
    value = "v" * 100_000
    for worker_id in range(30):
        talk.spawn(worker_id, ["/bin/sh", "-c", f"[ ${{#BIG}} = {len(value)} ]"], BIG=value)
    exits = [r for r in talk.until(k.Exited, 30) if isinstance(r, k.Exited)]
    assert {r.status for r in exits} == {0}


def test_closing_kills_and_removes_the_scratch_directory(tmp_path: Path, mark: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    scratch = tmp_path / "scratch"
    (scratch / "a" / "b").mkdir(parents=True)
    (scratch / "a" / "link").symlink_to(precious)
    (scratch / "a" / "b" / "file").write_text("y")
    talk = Conversation(scratch)
    talk.spawn(0, [sys.executable, "-c", LEAVES_A_DAEMON], MARK=mark)
    talk.until(k.Exited)
    assert talk.keeper.close(10)
    assert not marked(mark)
    assert not scratch.exists()
    assert (precious / "file").read_text() == "x"


def test_terminal_signals_do_not_end_it(talk: Conversation) -> None:
    talk.spawn(0, SLEEP)
    talk.until(k.Spawned)
    for signo in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGQUIT):
        os.kill(talk.keeper.pid, signo)
    talk.keeper.signal(0, signal.SIGKILL)
    talk.until(k.Exited)


def test_nonsense_ends_it_and_its_workers(talk: Conversation, mark: str) -> None:
    talk.spawn(0, SLEEP, MARK=mark)
    talk.until(k.Spawned)
    talk.keeper._send(b"?what")
    talk.until(k.Lost)
    assert soon(lambda: not marked(mark))


def test_a_dead_keeper_is_noticed_and_takes_its_workers_along(
    talk: Conversation, mark: str
) -> None:
    talk.spawn(0, SLEEP, MARK=mark)
    talk.until(k.Spawned)
    os.kill(talk.keeper.pid, signal.SIGKILL)
    talk.until(k.Lost)
    assert soon(lambda: not marked(mark))


AGENT = """
import os, sys, time
from torshrun.workers.keeper import Keeper
keeper = Keeper.start(sys.argv[1])
print(keeper.pid, flush=True)
for number in range(10_000):
    keeper.spawn(number, ["/bin/sleep", "600"], os.environ, "", (0, 1, 2))
    time.sleep(0.001)
"""


@pytest.mark.parametrize("after", [0.0, 0.01, 0.05, 0.2])
def test_nobody_outlives_an_agent_that_is_killed_while_it_spawns(
    tmp_path: Path, mark: str, after: float
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(scratch)],
        env={**os.environ, "MARK": mark},
        stdout=subprocess.PIPE,
    )
    assert agent.stdout
    agent.stdout.readline()
    time.sleep(after)
    agent.kill()
    agent.communicate(timeout=10)
    assert soon(lambda: not marked(mark)), marked(mark)
    assert soon(lambda: not scratch.exists())


def test_an_agent_that_is_stopped_in_a_frame_does_not_block_it(
    talk: Conversation, mark: str
) -> None:
    talk.spawn(0, SLEEP, MARK=mark)
    talk.until(k.Spawned)
    talk.arm(0.1)
    talk.keeper._socket.send(b"\xff\x00\x00")  # and then nothing
    assert soon(lambda: not marked(mark))


def spawn_slow(talk: Conversation, worker_id: int) -> None:
    """One that takes long to end. Returns when it would."""
    reader, writer = os.pipe()
    talk.keeper.spawn(worker_id, [sys.executable, "-c", DIES_SLOWLY], {}, "", (0, writer, 2))
    os.close(writer)
    talk.keeper.flush()
    assert os.read(reader, 1)
    os.close(reader)


def test_an_ending_is_reported_before_the_exit(talk: Conversation) -> None:
    talk.spawn(1, SLEEP)
    for _ in range(ATTEMPTS):
        talk.reports.clear()
        spawn_slow(talk, 0)
        talk.keeper.signal(0, signal.SIGKILL)
        talk.until(k.Exited)
        ends = [each for each in talk.reports if isinstance(each, k.Ending | k.Exited)]
        assert {each.status for each in ends} == {signal.SIGKILL}
        if [type(each) for each in ends] == [k.Ending, k.Exited]:
            return
        assert len(ends) == 1
    pytest.fail("no ending was reported early")


def test_nobody_looks_for_the_ending_of_a_single_worker(talk: Conversation) -> None:
    spawn_slow(talk, 0)
    talk.keeper.signal(0, signal.SIGKILL)
    talk.until(k.Exited)
    assert not talk.of(k.Ending)


def test_nobody_is_told_early_that_all_went_well(talk: Conversation) -> None:
    talk.spawn(1, SLEEP)
    talk.spawn(0, [sys.executable, "-c", f"{HOLD}\nheld = hold()"])
    (exited,) = talk.until(k.Exited)
    assert exited == k.Exited(0, 0, exited.peak_rss_kib)
    assert not talk.of(k.Ending)
