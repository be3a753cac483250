"""What signals do to a job, and the exit codes, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.launcher import Launcher
from support.processes import marked, soon

from torshrun import exit_codes

# A worker says with a file that a signal may come, and with another which one has come.
UP = 'open(f"up.{rank}", "w").close()\n'
NOTE = """
def note(signo, _):
    open(f"{signal.Signals(signo).name}.{rank}", "w").close()
"""
ENDLESS = "while True: time.sleep(60)\n"
UNTIL_GO = "while not os.path.exists('go'): time.sleep(0.01)\n"
Process = subprocess.Popen[str]


def end(process: Process) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process that is about to end."""
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def workers(torshrun: Launcher, agent: Process) -> list[int]:
    tree = marked(torshrun.mark)
    return [pid for pid, parent in tree.items() if agent.pid not in (pid, parent)]


def state(pid: int) -> str:
    """As ps has it; "T" is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def events(torshrun: Launcher) -> str:
    """What --events has told so far."""
    path = torshrun.folder / "events"
    return path.read_text() if path.exists() else ""


def happened(torshrun: Launcher, name: str, times: int = 1) -> bool:
    return events(torshrun).count(f'"{name}"') >= times


# ---- stopping


def test_workers_may_finish_their_work_in_the_grace(torshrun: Launcher) -> None:
    script = torshrun.script(
        "stopping = []\nsignal.signal(signal.SIGTERM, lambda *_: stopping.append(1))\n"
        + UP
        + "while not stopping: time.sleep(0.01)\ntime.sleep(0.3)\nprint('saved')\n"
    )
    process = torshrun.start("--nproc-per-node", "2", "--shutdown-timeout", "60", script)
    torshrun.wait_for("up.0", "up.1")
    process.terminate()
    code, out, err = end(process)
    assert (code, sorted(out.splitlines())) == (exit_codes.PREEMPTED, ["[0] saved", "[1] saved"])
    assert "got SIGTERM: ending 2 workers within 60 s" in err


@pytest.mark.parametrize(
    ("signo", "arrives_as"),
    [
        (signal.SIGINT, "SIGINT"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGHUP, "SIGTERM"),
        (signal.SIGQUIT, "SIGTERM"),
    ],
)
def test_an_interrupt_reaches_workers_as_one(
    torshrun: Launcher, signo: signal.Signals, arrives_as: str
) -> None:
    script = torshrun.script(
        "for signo in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):\n"
        "    signal.signal(\n"
        "        signo, lambda signo, _: (print(signal.Signals(signo).name), os._exit(0))\n"
        "    )\n" + UP + ENDLESS
    )
    process = torshrun.start("--nproc-per-node", "2", script)
    torshrun.wait_for("up.0", "up.1")
    process.send_signal(signo)
    code, out, _ = end(process)
    assert sorted(out.splitlines()) == [f"[0] {arrives_as}", f"[1] {arrives_as}"]
    assert code == (exit_codes.PREEMPTED if signo == signal.SIGTERM else 128 + signo)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_after_a_request_kills_at_once(
    torshrun: Launcher, first: signal.Signals
) -> None:
    script = torshrun.script(
        NOTE
        + "for signo in (signal.SIGINT, signal.SIGTERM): signal.signal(signo, note)\n"
        + UP
        + ENDLESS
    )
    process = torshrun.start("--nproc-per-node", "2", "--shutdown-timeout", "600", script)
    torshrun.wait_for("up.0", "up.1")
    process.send_signal(first)
    torshrun.wait_for(f"{first.name}.0", f"{first.name}.1")
    assert process.poll() is None
    time.sleep(0.2)  # in the same moment it would be the same request
    process.send_signal(signal.SIGINT)
    code, _, err = end(process)
    assert code == 130
    assert "got SIGINT: ending 2 workers at once" in err


def test_a_scheduler_that_repeats_its_request_does_not_cut_the_grace_short(
    torshrun: Launcher,
) -> None:
    script = torshrun.script(NOTE + "signal.signal(signal.SIGTERM, note)\n" + UP + UNTIL_GO)
    process = torshrun.start("--shutdown-timeout", "600", "--events", "events", script)
    torshrun.wait_for("up.0")
    for times, signo in enumerate((signal.SIGTERM, signal.SIGTERM, signal.SIGHUP), start=1):
        process.send_signal(signo)
        assert soon(lambda times=times: happened(torshrun, "stop_requested", times))  # type: ignore[misc]
        time.sleep(0.2)  # in the same moment it would be the same request
    torshrun.wait_for("SIGTERM.0")
    torshrun.make("go")
    code, _, err = end(process)
    assert (code, err.count("ending 1 worker")) == (exit_codes.PREEMPTED, 1), err
    assert not happened(torshrun, "workers_killed")


def test_one_that_ignores_the_request_is_killed_when_the_grace_is_over(torshrun: Launcher) -> None:
    script = torshrun.script(
        "if rank == 1: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + UP + ENDLESS
    )
    process = torshrun.start(
        "--nproc-per-node", "2", "--shutdown-timeout", "0.5", "--events", "events", script
    )
    torshrun.wait_for("up.0", "up.1")
    process.terminate()
    assert end(process)[0] == exit_codes.PREEMPTED
    killed = re.search(r'"workers_killed".*"ranks": ?\[([^]]*)\]', events(torshrun))
    assert killed
    assert killed[1] == "1"


def test_a_stopped_worker_obeys_the_request(torshrun: Launcher) -> None:
    script = torshrun.script(
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), os._exit(0)))\n" + UP + ENDLESS
    )
    process = torshrun.start("--shutdown-timeout", "600", script)
    torshrun.wait_for("up.0")
    (worker,) = workers(torshrun, process)
    os.kill(worker, signal.SIGSTOP)
    process.terminate()
    assert end(process)[:2] == (exit_codes.PREEMPTED, "[0] saved\n")


@pytest.mark.parametrize("seconds", [0, 0.01, 0.03, 0.1])
def test_a_request_while_64_workers_are_started(torshrun: Launcher, seconds: float) -> None:
    process = torshrun.start(
        *("--nproc-per-node", "64", "--events", "events", "--no-python", "sleep", "600")
    )
    assert soon(lambda: happened(torshrun, "round_started"))
    time.sleep(seconds)
    process.terminate()
    code, out, err = end(process)
    assert (code, out) == (exit_codes.PREEMPTED, ""), err


@pytest.mark.parametrize(
    ("signo", "code"), [(signal.SIGTERM, exit_codes.PREEMPTED), (signal.SIGINT, 130)]
)
def test_a_request_in_the_pause_before_a_restart_ends_the_job(
    torshrun: Launcher, signo: signal.Signals, code: int
) -> None:
    script = torshrun.script("sys.exit(4 + int(os.environ['TORSH_ROUND']))")
    process = torshrun.start(
        *("--max-restarts", "5", "--restart-backoff", "600", "--events", "events", script)
    )
    assert soon(lambda: happened(torshrun, "restart_scheduled", 2))
    process.send_signal(signo)
    got, _, err = end(process)
    assert got == code
    assert err.count("failed first") == 2


@pytest.mark.parametrize(("signo", "code"), [(signal.SIGTERM, 42), (signal.SIGINT, 130)])
def test_a_failure_before_the_request_is_reported_and_was_what_ended_the_job(
    torshrun: Launcher, signo: signal.Signals, code: int
) -> None:
    script = torshrun.script(
        NOTE
        + "if rank == 0:\n"
        + "    signal.signal(signal.SIGTERM, note)\n"
        + "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        + UP
        + "while not os.path.exists('up.0'): time.sleep(0.01)\n"
        + "if rank == 1: sys.exit(42)\n"
        + UNTIL_GO
    )
    process = torshrun.start(
        *("--nproc-per-node", "2", "--shutdown-timeout", "600", "--max-restarts", "3"),
        *("--events", "events", script),
    )
    torshrun.wait_for("SIGTERM.0")  # the other worker has failed
    process.send_signal(signo)
    assert soon(lambda: happened(torshrun, "stop_requested"))
    torshrun.make("go")
    got, _, err = end(process)
    assert (got, "rank 1 failed first: exit code 42" in err) == (code, True), err


def test_only_chosen_signals_stop_the_job_in_an_orderly_way(torshrun: Launcher) -> None:
    script = torshrun.script(UP + ENDLESS)
    process = torshrun.start("--signals-to-handle", "SIGTERM", script)
    torshrun.wait_for("up.0")
    process.terminate()
    assert end(process)[0] == exit_codes.PREEMPTED


@pytest.mark.parametrize("signo", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_that_was_not_chosen_ends_the_agent_and_with_it_the_workers(
    torshrun: Launcher, signo: signal.Signals
) -> None:
    script = torshrun.script(
        "for signo in (signal.SIGINT, signal.SIGTERM): signal.signal(signo, signal.SIG_IGN)\n"
        + UP
        + ENDLESS
    )
    process = torshrun.start("--signals-to-handle", "SIGTERM", script)
    torshrun.wait_for("up.0")
    process.send_signal(signo)
    assert end(process)[0] == -signo
    assert soon(lambda: not torshrun.left_behind())


# ---- notices


@pytest.mark.parametrize("signo", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_notice_that_workers_handle_changes_nothing(
    torshrun: Launcher, signo: signal.Signals
) -> None:
    script = torshrun.script(
        NOTE + f"signal.signal({int(signo)}, note)\n" + UP + UNTIL_GO + "print('end')\n"
    )
    process = torshrun.start("--nproc-per-node", "2", script)
    torshrun.wait_for("up.0", "up.1")
    process.send_signal(signo)
    torshrun.wait_for(f"{signo.name}.0", f"{signo.name}.1")
    torshrun.make("go")
    code, out, err = end(process)
    assert (code, sorted(out.splitlines())) == (0, ["[0] end", "[1] end"])
    assert err == f"torshrun: got {signo.name}: passing it on to the workers\n"


@pytest.mark.parametrize("signo", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("handled", ["", "0"])
def test_workers_that_die_of_a_notice_were_preempted(
    torshrun: Launcher, signo: signal.Signals, handled: str
) -> None:
    """Whether one of them handles it or none."""
    script = torshrun.script(
        f"if str(rank) in '{handled}': signal.signal({int(signo)}, signal.SIG_IGN)\n"
        "print('go')\n" + UP + ENDLESS
    )
    process = torshrun.start("--nproc-per-node", "2", "--max-restarts", "3", script)
    torshrun.wait_for("up.0", "up.1")
    process.send_signal(signo)
    code, out, err = end(process)
    assert (code, out.count("go")) == (exit_codes.PREEMPTED, 2), err
    assert "restarting" not in err


def test_dying_of_the_same_signal_without_a_notice_is_a_failure(torshrun: Launcher) -> None:
    script = torshrun.script("os.kill(os.getpid(), signal.SIGUSR1)\n" + ENDLESS)
    assert torshrun.run(script)[0] == 128 + signal.SIGUSR1


# What a DataLoader starts: of these only a forked one has the handlers of its parent.
CHILDREN = """
import multiprocessing

def work(method):
    open(f"child.{method}", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.01)

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: open("noticed", "w").close())
    children = []
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        children.append(context.Process(target=work, args=(method,)))
        children[-1].start()
    for child in children:
        child.join()
        print(child.exitcode)
"""


def test_a_notice_does_not_kill_what_workers_have_started(torshrun: Launcher) -> None:
    process = torshrun.start("--log-line-prefix-template", "", torshrun.script(CHILDREN))
    for method in ("fork", "spawn", "forkserver"):  # each begins a Python of its own
        torshrun.wait_for(f"child.{method}")
    process.send_signal(signal.SIGUSR1)
    torshrun.wait_for("noticed")
    torshrun.make("go")
    assert end(process)[:2] == (0, "0\n0\n0\n")


@pytest.mark.parametrize("signo", [signal.SIGUSR1, signal.SIGUSR2])
def test_one_that_is_named_stops_the_job_as_with_torchrun(
    torshrun: Launcher, signo: signal.Signals
) -> None:
    script = torshrun.script(
        f"signal.signal({int(signo)}, lambda *_: (print('saved'), os._exit(0)))\n" + UP + ENDLESS
    )
    process = torshrun.start("--signals-to-handle", signo.name, script)
    torshrun.wait_for("up.0")
    process.send_signal(signo)
    code, out, err = end(process)
    assert (code, out) == (128 + signo, "[0] saved\n")
    assert f"got {signo.name}: ending 1 worker" in err


# ---- suspending


def test_suspended_and_resumed(torshrun: Launcher) -> None:
    """Twice, and longer than --agent-timeout."""
    script = torshrun.script(UP + UNTIL_GO)
    process = torshrun.start("--nproc-per-node", "2", "--agent-timeout", "0.5", script)
    torshrun.wait_for("up.0", "up.1")
    everybody = [process.pid, *workers(torshrun, process)]
    for _ in range(2):
        process.send_signal(signal.SIGTSTP)
        assert soon(lambda: {state(pid) for pid in everybody} == {"T"})
        time.sleep(1.5)
        assert {state(pid) for pid in everybody} == {"T"}
        process.send_signal(signal.SIGCONT)
        assert soon(lambda: "T" not in {state(pid) for pid in everybody})
    torshrun.make("go")
    assert end(process) == (0, "", "")


def test_after_a_suspension_the_timer_is_armed_again(torshrun: Launcher) -> None:
    script = torshrun.script(UP + ENDLESS)
    process = torshrun.start("--agent-timeout", "0.5", script)
    torshrun.wait_for("up.0")
    process.send_signal(signal.SIGTSTP)
    assert soon(lambda: state(process.pid) == "T")
    process.send_signal(signal.SIGCONT)
    (worker,) = workers(torshrun, process)
    assert soon(lambda: state(worker) != "T")
    process.send_signal(signal.SIGSTOP)
    assert soon(lambda: not workers(torshrun, process))
    process.send_signal(signal.SIGCONT)
    assert end(process)[0] == exit_codes.LOST


def test_the_workers_of_a_stopped_agent_end(torshrun: Launcher) -> None:
    script = torshrun.script("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + UP + ENDLESS)
    process = torshrun.start(
        *("--nproc-per-node", "2", "--max-restarts", "2", "--agent-timeout", "0.5", script)
    )
    torshrun.wait_for("up.0", "up.1")
    process.send_signal(signal.SIGSTOP)
    assert soon(lambda: not workers(torshrun, process))
    process.send_signal(signal.SIGCONT)
    code, _, err = end(process)
    assert code == exit_codes.LOST
    assert "gave no sign of life for 0.5 s (--agent-timeout)" in err
    assert "restarting" not in err


@pytest.mark.parametrize("timeout", ["0", "60"])
def test_the_workers_of_a_stopped_agent_go_on_until_the_timeout(
    torshrun: Launcher, timeout: str
) -> None:
    """0 is never."""
    script = torshrun.script(UP + UNTIL_GO + 'open("end", "w").close()\n')
    process = torshrun.start("--agent-timeout", timeout, script)
    torshrun.wait_for("up.0")
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    torshrun.make("go")
    torshrun.wait_for("end")
    process.send_signal(signal.SIGCONT)
    assert end(process) == (0, "", "")


# ---- exit codes


def test_success_is_0(torshrun: Launcher) -> None:
    assert torshrun.run(torshrun.script("")) == (0, "", "")


@pytest.mark.parametrize("argv", [["--no-such-option"], ["--nproc-per-node", "0", "x"], []])
def test_bad_usage(torshrun: Launcher, argv: list[str]) -> None:
    code, out, err = torshrun.run(*argv)
    assert (code, out) == (exit_codes.USAGE, "")
    assert err


def test_the_root_causes_own_code(torshrun: Launcher) -> None:
    script = torshrun.script("if rank == 1: sys.exit(42)\n" + ENDLESS)
    assert torshrun.run("--nproc-per-node", "2", script)[0] == 42


@pytest.mark.parametrize("signo", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_the_signal_that_killed_the_root_cause(torshrun: Launcher, signo: signal.Signals) -> None:
    script = torshrun.script(f"if rank == 1: os.kill(os.getpid(), {int(signo)})\n" + ENDLESS)
    assert torshrun.run("--nproc-per-node", "2", script)[0] == 128 + signo


def test_a_spent_budget(torshrun: Launcher) -> None:
    script = torshrun.script("sys.exit(4 + int(os.environ['TORSH_ROUND']))")
    code, _, err = torshrun.run("--max-restarts", "1", script)
    assert (code, "exit code 5" in err) == (exit_codes.BUDGET_SPENT, True)


def test_a_lost_keeper(torshrun: Launcher) -> None:
    process = torshrun.start("--max-restarts", "3", torshrun.script(UP + ENDLESS))
    torshrun.wait_for("up.0")
    (keeper,) = [pid for pid, parent in marked(torshrun.mark).items() if parent == process.pid]
    os.kill(keeper, signal.SIGKILL)
    assert end(process)[0] == exit_codes.LOST


def test_a_hang(torshrun: Launcher) -> None:
    code, _, err = torshrun.run("--hang-timeout", "1", torshrun.script(ENDLESS))
    assert (code, "no progress" in err) == (exit_codes.HUNG, True), err


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("neither a script nor a binary", exit_codes.CANNOT_EXECUTE),
        ("#!/no/such/interpreter\n", exit_codes.NOT_FOUND),
    ],
)
def test_a_program_that_cannot_be_started(torshrun: Launcher, content: str, code: int) -> None:
    program = torshrun.folder / "program"
    program.write_text(content)
    program.chmod(0o755)
    got, _, err = torshrun.run("--no-python", "--max-restarts", "3", str(program))
    assert (got, "restarting" in err) == (code, False), err
    assert str(program) in err
