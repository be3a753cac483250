"""What real jobs tell as events: each line fits the schema, and the order is as documented."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from torsh_runtime.events import Event, faults
from torshrun import exit_codes

Tell = Callable[..., tuple[int, list[Event]]]


@pytest.fixture
def tell(tmp_path: Path) -> Tell:
    """Run a script; the exit code and the events. `signals` are sent when it has said "up"."""

    def run(text: str, *options: str, signals: tuple[int, ...] = ()) -> tuple[int, list[Event]]:
        script, file = tmp_path / "train.py", tmp_path / "events.jsonl"
        script.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n")
        with script.open("a") as out:
            out.write(textwrap.dedent(text))
        argv = [sys.executable, "-P", "-m", "torshrun", "--events", str(file), *options]
        with subprocess.Popen(
            [*argv, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as job:
            assert job.stdout
            for signo in signals:
                while "up" not in job.stdout.readline():
                    assert job.poll() is None
                job.send_signal(signo)
            job.communicate(timeout=30)
        events = [Event.from_json(line) for line in file.read_bytes().splitlines()]
        check(events, job.returncode)
        return job.returncode, events

    return run


def check(events: list[Event], code: int) -> None:
    assert [faults(event) for event in events if faults(event)] == []
    names = [event.name for event in events]
    assert names[0] == "job_started"
    assert names.count("job_finished") == 1
    assert names[-1] == "job_finished"
    assert events[-1].facts["code"] == code


def outcome(events: list[Event]) -> object:
    return events[-1].facts["outcome"]


def test_the_health_check_port_of_torchrun(tell: Tell, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    code, _ = tell(
        f"""
        import json, urllib.request
        with urllib.request.urlopen("http://127.0.0.1:{port}/healthz", timeout=20) as answer:
            assert (answer.status, json.load(answer)["workers"]) == (200, 1)
        """
    )
    assert code == 0


def test_success(tell: Tell) -> None:
    code, events = tell("time.sleep(0.3)", "--nproc-per-node", "2")
    assert (code, outcome(events)) == (0, "succeeded")
    assert [event.name for event in events] == [
        *("job_started", "round_started", "workers_started", "worker_exited", "worker_exited"),
        *("round_ended", "job_finished"),
    ]


def test_failures_and_a_restart(tell: Tell) -> None:
    code, events = tell("sys.exit(4 + int(os.environ['TORSH_ROUND']))", "--max-restarts", "1")
    assert (code, outcome(events)) == (exit_codes.BUDGET_SPENT, "failed")
    names = [event.name for event in events]
    assert names.count("worker_failed") == 2
    assert names.index("restart_scheduled") < names.index("round_started", 2)
    assert events[-1].facts["reason"] == "budget spent"


@pytest.mark.parametrize("code", [exit_codes.PREEMPTED, exit_codes.LOST, exit_codes.HUNG])
def test_a_workers_own_code_is_no_outcome(tell: Tell, code: int) -> None:
    ended, events = tell(f"sys.exit({code})")
    assert (ended, outcome(events)) == (code, "failed")


def test_a_request_to_make_room(tell: Tell) -> None:
    code, events = tell("print('up', flush=True); time.sleep(60)", signals=(signal.SIGTERM,))
    assert (code, outcome(events)) == (exit_codes.PREEMPTED, "preempted")
    assert "stop_requested" in [event.name for event in events]


def test_a_notice_and_then_a_request(tell: Tell) -> None:
    script = """
        if rank == 0:
            signal.signal(signal.SIGUSR1, lambda *_: print("up", flush=True))
            signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(0)))
            print("up", flush=True)
        while True: time.sleep(60)
    """
    signals = (signal.SIGUSR1, signal.SIGTERM)
    code, events = tell(script, "--nproc-per-node", "2", signals=signals)
    assert (code, outcome(events)) == (exit_codes.PREEMPTED, "preempted")


def test_a_hang(tell: Tell) -> None:
    code, events = tell("time.sleep(60)", "--hang-timeout", "1")
    assert (code, outcome(events)) == (exit_codes.HUNG, "hung")
    names = [event.name for event in events]
    assert names.index("hang_detected") < names.index("workers_stopping")


def test_a_dead_keeper(tell: Tell) -> None:
    code, events = tell("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)")
    assert (code, outcome(events)) == (exit_codes.LOST, "lost")
    assert "keeper_lost" in [event.name for event in events]


def test_a_program_that_cannot_start(tell: Tell, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    file = tmp_path / "events.jsonl"
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "torshrun", "--events", file, "--no-python", broken],
        capture_output=True,
        timeout=30,
    )
    events = [Event.from_json(line) for line in file.read_bytes().splitlines()]
    check(events, ended.returncode)
    assert (ended.returncode, outcome(events)) == (exit_codes.NOT_FOUND, "failed")
    assert "start_failed" in [event.name for event in events]
