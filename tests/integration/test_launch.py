"""The torshrun command end to end, with real workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from support.launcher import Launcher, until_line
from support.other_users import STRANGER, needs_root
from support.processes import marked

from torshrun import exit_codes


def test_each_worker_finds_its_place(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        names = ("RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK MASTER_ADDR "
                 "TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORSH_ROUND ROLE_NAME").split()
        print(*(f"{name}={os.environ[name]}" for name in names))
        from torsh_runtime.contract import WorkerEnv
        place = WorkerEnv.from_environ(os.environ)
        assert place.store_endpoint.startswith("unix:@") and len(place.secret) == 64
        assert os.path.isdir(os.path.dirname(place.error_file))
        assert 1 <= place.master_port <= 65535 and int(os.environ["OMP_NUM_THREADS"]) >= 1
        """
    )
    code, out, err = torshrun.run("--nproc-per-node", "3", "--rdzv-id", "j", script)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [
        f"[{rank}] RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 GROUP_RANK=0 "
        f"NODE_RANK=0 MASTER_ADDR=127.0.0.1 TORCHELASTIC_MAX_RESTARTS=0 TORCHELASTIC_RUN_ID=j "
        f"TORSH_ROUND=0 ROLE_NAME=default"
        for rank in range(3)
    ]


@pytest.mark.parametrize("more", [(), ("--preload", "json")], ids=["started", "standbys"])
def test_workers_share_a_session_if_they_are_more_than_the_cpus(
    torshrun: Launcher, more: tuple[str, ...]
) -> None:
    script = torshrun.script("print(os.getsid(0), os.getpid(), os.getpgrp() == os.getpid())")
    sessions = {}
    for number in (1, len(os.sched_getaffinity(0)) + 1):
        options = ("--nproc-per-node", str(number), "--log-line-prefix-template", "")
        code, out, err = torshrun.run(*options, *more, script)
        assert code == 0, err
        facts = [line.split() for line in out.splitlines()]
        assert all(leads_group == "True" for _, _, leads_group in facts)
        sessions[number] = {(session, session == pid) for session, pid, _ in facts}
    alone, shared = sessions.values()
    assert [leads for _, leads in alone] == [True]
    assert [leads for _, leads in shared] == [False]


def test_workers_share_the_rounds_store(torshrun: Launcher) -> None:
    pytest.importorskip("torsh_runtime.store.client")
    script = torshrun.script(
        """
        from torsh_runtime.store.client import StoreClient
        secret = bytes.fromhex(os.environ["TORSH_WORKER_SECRET"])
        store = StoreClient.connect(os.environ["TORSH_STORE_ENDPOINT"], secret, timeout=10)
        store.put(f"rank{rank}", b"here")
        store.wait(["rank0", "rank1"], timeout=10)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            store.put("old", b"x")
            sys.exit(1)
        assert store.get("old") is None
        """
    )
    code, _, err = torshrun.run("--nproc-per-node", "2", "--max-restarts", "1", script)
    assert code == 0, err


def test_arguments_reach_the_script(torshrun: Launcher) -> None:
    script = torshrun.script("print(sys.argv[1:])")
    code, out, _ = torshrun.run(script, "--nproc-per-node", "9", "a b", "--", "")
    assert (code, out) == (0, "[0] ['--nproc-per-node', '9', 'a b', '--', '']\n")


def test_modules_and_programs(torshrun: Launcher) -> None:
    torshrun.script("print(__name__, sys.argv[1:])", "pkg_train.py")
    assert torshrun.run("-m", "pkg_train", "x")[:2] == (0, "[0] __main__ ['x']\n")
    assert torshrun.run("--no-python", "sh", "-c", "echo $RANK$1", "s", "!") == (
        0,
        "[0] 0!\n",
        "",
    )


@pytest.mark.parametrize(
    ("ending", "code", "said"),
    [
        ("sys.exit(3)", 3, "exit code 3"),
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL, exit code 137"),
        ("os.abort()", 134, "killed by SIGABRT, exit code 134"),
        ("raise KeyError('gone')", 1, "  | KeyError: 'gone'"),
    ],
)
def test_the_exit_code_is_the_root_causes(
    torshrun: Launcher, ending: str, code: int, said: str
) -> None:
    script = torshrun.script(f"if rank == 1: {ending}\ntime.sleep(60)")
    got, _, err = torshrun.run("--nproc-per-node", "3", script)
    assert got == code
    assert said in err
    surely = "most likely " if "SIGKILL" in said else ""  # somebody else has sent it
    assert f"rank 1 {surely}failed first: {'' if 'KeyError' in ending else said}" in err
    assert "after it: ranks 0, 2 stopped by torshrun" in err


def test_one_that_lost_its_peer_is_not_blamed(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        from torsh_runtime.errors import PeerLost
        if rank == 0:
            raise PeerLost(1, "all_reduce", 7)
        time.sleep(0.05)
        sys.exit(9)
        """
    )
    code, _, err = torshrun.run("--nproc-per-node", "2", script)
    assert code == 9
    assert "rank 1 failed first: exit code 9" in err
    assert "after it: rank 0 lost a peer" in err


def test_a_restart_and_then_success(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("attempt", attempt, "round", os.environ["TORSH_ROUND"])
        if attempt != "2" and rank == 0: sys.exit(5 + int(attempt))
        """
    )
    code, out, err = torshrun.run("--nproc-per-node", "2", "--max-restarts", "3", script)
    assert code == 0
    assert "attempt 1 of 4: restarting now, 2 of 3 restarts left" in err
    assert re.search(r"attempt 2 of 4: restarting in \d\.\d s, 1 of 3 restarts left", err)
    assert "[1] attempt 2 round 2" in out


def test_the_budget_ends(torshrun: Launcher) -> None:
    script = torshrun.script("print('go'); sys.exit(4 + int(os.environ['TORSH_ROUND']))")
    code, out, err = torshrun.run("--max-restarts", "2", "--restart-backoff", "0", script)
    assert (code, out.count("go")) == (exit_codes.BUDGET_SPENT, 3)
    assert "attempt 3 of 3: the job has failed, no restarts left" in err


def test_the_same_failure_at_the_start_is_not_tried_a_third_time(torshrun: Launcher) -> None:
    script = torshrun.script("print('go'); import no_such_module")
    code, out, err = torshrun.run("--max-restarts", "5", script)
    assert (code, out.count("go")) == (1, 2)
    assert "attempt 2 of 6: the job has failed in the same way at its start as before" in err
    assert "(--retry-same-start: it is)" in err


def test_who_wants_it_tries_the_same_start_again(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        print("go")
        if os.environ["TORCHELASTIC_RESTART_COUNT"] != "3": raise ConnectionError("not yet there")
        """
    )
    options = ("--max-restarts", "5", "--restart-backoff", "0")
    assert torshrun.run(*options, script)[0] == 1
    code, out, _ = torshrun.run(*options, "--retry-same-start", script)
    assert (code, out.count("go")) == (0, 4)


def test_a_failure_after_the_start_is_tried_again(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        tr.init_process_group()
        sys.exit(4)
        """
    )
    code, _, err = torshrun.run("--max-restarts", "2", "--restart-backoff", "0", script)
    assert code == exit_codes.BUDGET_SPENT
    assert err.count("attempt") == 3


@pytest.mark.parametrize(
    ("signo", "code"),
    [
        (signal.SIGTERM, exit_codes.PREEMPTED),
        (signal.SIGINT, 130),
        (signal.SIGHUP, 129),
        (signal.SIGQUIT, 131),
    ],
)
def test_a_signal_stops_the_workers(torshrun: Launcher, signo: int, code: int) -> None:
    script = torshrun.script("print('up'); time.sleep(60)")
    process = torshrun.start("--nproc-per-node", "2", script)
    until_line(process, "[0] up")
    process.send_signal(signo)
    _, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert f"got {signal.Signals(signo).name}" in err


def test_the_grace_is_kept_and_ends(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        if rank == 0:
            signal.signal(15, lambda *_: (print("saved"), sys.exit(0)))
        else:
            signal.signal(15, signal.SIG_IGN)
        print("up")
        while True: time.sleep(60)
        """
    )
    process = torshrun.start("--nproc-per-node", "2", "--shutdown-timeout", "0.5", script)
    assert process.stdout
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] up\n", "[1] up\n"]
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (exit_codes.PREEMPTED, "[0] saved\n")


def test_an_ignored_hangup_stays_ignored(torshrun: Launcher) -> None:
    script = torshrun.script("print('up'); time.sleep(0.5); print('end')")
    process = torshrun.start(
        script, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    until_line(process, "[0] up")
    process.send_signal(signal.SIGHUP)
    out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (0, "[0] end\n")


def test_streams_stay_apart_and_bytes_survive(torshrun: Launcher) -> None:
    script = torshrun.script(
        "os.write(1, b'\\xff\\xfe\\n'); os.write(2, b'warn\\n'); print('no newline', end='')"
    )
    process = torshrun.start(script, text=False)
    out, err = process.communicate(timeout=10)
    assert (out, err) == (b"[0] \xff\xfe\n[0] no newline", b"[0] warn\n")


def test_no_output_is_lost_at_the_end(torshrun: Launcher) -> None:
    script = torshrun.script("for n in range(20000): print(n, 'x' * 50)\nos._exit(0)")
    process = torshrun.start("--nproc-per-node", "2", script)
    time.sleep(0.5)  # the pipes are full, and the workers wait
    out, _ = process.communicate(timeout=30)
    for rank in range(2):
        numbers = re.findall(rf"^\[{rank}\] (\d+) x{{50}}$", out, re.MULTILINE)
        assert numbers == [str(number) for number in range(20000)]


def test_a_reader_that_goes_away_does_not_hold_up_the_job(torshrun: Launcher) -> None:
    script = torshrun.script("for n in range(5000): print('y' * 100)\nopen(f'done', 'w').close()")
    process = torshrun.start(script)
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert (torshrun.folder / "done").exists()


def test_a_reader_that_does_not_read_holds_up_no_stop_and_no_report(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        while rank == 0 and not os.path.exists("go"):
            time.sleep(0.01)
        if rank == 1:
            print("up", file=sys.stderr)
            time.sleep(60)
        while True:
            print("z" * 999)
        """
    )
    process = torshrun.start("--nproc-per-node", "2", script)
    assert process.stderr
    assert process.stderr.readline() == "[1] up\n"
    (torshrun.folder / "go").touch()
    time.sleep(0.5)  # by now all pipes are full
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == exit_codes.PREEMPTED
    assert "got SIGTERM: ending 2 workers" in process.stderr.read()


def test_output_is_kept_by_attempt_and_rank(torshrun: Launcher) -> None:
    script = torshrun.script(
        "print('out', rank); print('err', file=sys.stderr)\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')"
    )
    logs = torshrun.folder / "logs"
    code, _, err = torshrun.run(
        "--nproc-per-node=2", "--max-restarts=1", f"--log-dir={logs}", "--run-id=j/1", script
    )
    assert code == 0, err
    (job,) = logs.iterdir()
    assert job.name.startswith("j_1_")
    for attempt in range(2):
        for rank in range(2):
            kept = job / f"attempt_{attempt}" / str(rank)
            assert (kept / "stdout.log").read_text() == f"out {rank}\n"
            assert (kept / "stderr.log").read_text() == "err\n"
    assert f"its output is kept in {job}/attempt_0/" in err


def test_an_error_file_is_read(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import json
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
            json.dump({"message": {"message": "m", "extraInfo": {"py_callstack": "OutOfLuck: x"}}},
                      file)
        os._exit(6)
        """
    )
    code, _, err = torshrun.run(script)
    assert code == 6
    assert "  | OutOfLuck: x" in err


def test_a_program_that_cannot_be_executed(torshrun: Launcher) -> None:
    broken = torshrun.folder / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    code, _, err = torshrun.run(
        "--no-python", "--nproc-per-node", "3", "--max-restarts", "3", str(broken)
    )
    assert code == 127
    assert err.count("cannot start") == 1  # and not once for each rank
    assert "No such file or directory" in err


def test_a_log_directory_that_cannot_be_made_starts_nothing(torshrun: Launcher) -> None:
    script = torshrun.script("print('started')")
    code, out, err = torshrun.run("--log-dir", "/proc/logs", script)
    assert (code, out) == (2, "")
    assert (
        "torshrun: error: cannot make a directory in /proc/logs: No such file or directory" in err
    )


@needs_root
@pytest.mark.parametrize("options", [["--log-dir", "trap/logs"], []])
def test_nothing_is_made_where_another_users_link_leads(
    torshrun: Launcher, options: list[str]
) -> None:
    precious, trap = torshrun.folder / "precious", torshrun.folder / "trap"
    precious.mkdir()
    trap.symlink_to(precious)
    os.lchown(trap, STRANGER, STRANGER)
    script = torshrun.script("print('started')")
    if not options:
        torshrun.environ["TMPDIR"] = str(trap)
    code, out, err = torshrun.run(*options, script)
    assert (code, out) == (2, "")
    assert "trap is another user's symbolic link" in err
    assert list(precious.iterdir()) == []


def test_a_taken_master_port_starts_nothing(torshrun: Launcher) -> None:
    import socket

    script = torshrun.script("print('started')")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        code, out, err = torshrun.run("--master-port", str(port), script)
    assert (code, out) == (2, "")
    assert f"master port {port}" in err
    assert f"pid {os.getpid()}" in err


def test_a_dead_keeper_fails_the_job_and_leaves_nothing(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                print("daemon up")
                time.sleep(600)
            os._exit(0)
        print("keeper", os.getppid())
        time.sleep(600)
        """
    )
    process = torshrun.start(script)
    assert process.stdout
    lines = [process.stdout.readline() for _ in range(2)]
    (keeper,) = (int(line.split()[-1]) for line in lines if "keeper" in line)
    os.kill(keeper, signal.SIGKILL)
    _, err = process.communicate(timeout=15)
    assert process.returncode == exit_codes.LOST
    assert f"the keeper (torsh-keeper, pid {keeper}) has died" in err


@pytest.mark.parametrize(
    "leave",
    [
        "os.mkfifo(file)",
        "os.mkdir(file)",
        "open(file, 'w').write('[' * 200_000)",
        "open(file, 'wb').write(bytes(range(256)) * 10_000)",
        "open(file, 'w').write('{\"message\": [1, {}]}')",
        "open(file, 'w').write('7')",
        "open(file, 'w').write('{\"message\": \"half \\\\ud800\"}')",
    ],
)
def test_an_error_file_may_hold_anything(torshrun: Launcher, leave: str) -> None:
    script = torshrun.script(
        f"file = os.environ['TORCHELASTIC_ERROR_FILE']\n{leave}\nsys.exit(7)\n"
    )
    code, _, err = torshrun.run(script)
    assert code == 7, err
    assert re.search("rank 0 (most likely )?failed first: exit code 7", err), err
    assert "internal error" not in err


def test_two_streams_into_one_file_tear_no_line(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        time.sleep(0.6 * rank)
        if rank == 0:
            print("name? ", end="")
            time.sleep(1.2)
        else:
            print("warning", file=sys.stderr)
        """
    )
    process = torshrun.start("--nproc-per-node", "2", script, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=30)
    assert out.splitlines()[:2] == ["[0] name? ", "[1] warning"]


def test_a_stopped_keeper_does_not_hold_up_the_end(torshrun: Launcher) -> None:
    script = torshrun.script("print('up', flush=True)\ntime.sleep(600)")
    process = torshrun.start("--shutdown-timeout", "0.2", script)
    until_line(process, "up")
    (keeper,) = [pid for pid, parent in marked(torshrun.mark).items() if parent == process.pid]
    os.kill(keeper, signal.SIGSTOP)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == exit_codes.PREEMPTED
    assert "the keeper (torsh-keeper, pid " in err
    assert "it is resumed" in err


def test_a_nested_job_leaves_nothing_when_the_outer_agent_is_killed(torshrun: Launcher) -> None:
    inner = torshrun.script("print('up', flush=True)\ntime.sleep(600)", "inner.py")
    process = torshrun.start("-m", "torshrun", inner)
    until_line(process, "up")
    process.kill()
    process.communicate(timeout=30)  # the fixture looks for processes and directories


def test_too_few_descriptors_are_an_error_before_anything_starts(torshrun: Launcher) -> None:
    script = torshrun.script("print('up')")
    command = f"ulimit -n 60; exec {sys.executable} -m torshrun --nproc-per-node 12 {script}"
    ended = subprocess.run(
        ["bash", "-c", command],
        env=torshrun.environ,
        cwd=torshrun.folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 2
    assert "12 workers need 96 open files, but the limit is 60" in ended.stderr
    assert "up" not in ended.stdout


@needs_root  # whom the limit does not hold for
@pytest.mark.parametrize("tasks", [1, 2])
def test_too_few_processes_are_told_in_words(torshrun: Launcher, tasks: int) -> None:
    nobody_elses = 2_000_000 + os.getpid()
    capabilities = ("--bounding-set=-sys_resource,-sys_admin", "--inh-caps=+dac_override")
    user = (f"--reuid={nobody_elses}", "--clear-groups", *capabilities)
    limit = ("bash", "-c", f'ulimit -u {tasks}; exec "$@"', "bash")
    within = ("setpriv", *user, "--ambient-caps=+dac_override", *limit)
    process = torshrun.start(torshrun.script("print('ran')"), within=within)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("torshrun: error: torshrun may start no more processes or threads: raise")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"#!/bin/sh\r\necho ran\r\n", "its lines end as on Windows"),
        (b"#!/no/such/sh -e\n", "No such file or directory: '/no/such/sh', the interpreter in its"),
        (b"echo ran\n", "it has no first line like #!/bin/sh"),
    ],
)
def test_a_program_that_cannot_be_one_is_explained(
    torshrun: Launcher, text: bytes, said: str
) -> None:
    program = torshrun.folder / "run.sh"
    program.write_bytes(text)
    program.chmod(0o700)
    code, out, err = torshrun.run("--no-python", "./run.sh")
    assert (code in (126, 127), out) == (True, "")
    assert f"cannot start ./run.sh: {said}" in err
