"""Failures, restarts, signals and ends under torshrun, compared with torchrun's."""

from __future__ import annotations

import importlib.util
import json
import signal

import pytest
from support.launchers import Bench

from torshrun import exit_codes

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="compares with torch's own"),
]

LISTEN = """
import signal, time
def note(signo, _):
    print("got", signal.Signals(signo).name)
    if signo not in (10, 12):
        sys.exit(0)
for signo in (1, 2, 3, 10, 12, 15):
    signal.signal(signo, note)
open(place + ".ready", "w").close()
while True:
    time.sleep(60)
"""
FAIL_TWICE = """
import time
if restart < 2:
    sys.exit(3 + restart) if rank == 1 else time.sleep(60)
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def test_success_is_zero(bench: Bench) -> None:
    assert [run.code for run in bench.both("--nproc-per-node=2", "probe.py")] == [0, 0]


@pytest.mark.parametrize(
    ("ending", "code"), [("sys.exit(42)", 42), ("os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_is_the_workers(bench: Bench, ending: str, code: int) -> None:
    ours, theirs = bench.both("probe.py", then=ending)
    assert (ours.code, theirs.code) == (code, 1)


def test_restarts_count_alike(bench: Bench) -> None:
    size = ("--nproc-per-node=2", "--max-restarts=3", "--shutdown-timeout=5")
    ours = bench.run("torshrun", *size, "--restart-backoff=0", "probe.py", then=FAIL_TWICE)
    theirs = bench.run("torchrun", *size, "probe.py", then=FAIL_TWICE)
    assert (ours.code, theirs.code) == (0, 0), ours.err
    expected = {(rank, restart) for rank in range(2) for restart in range(3)}
    assert ours.seen.keys() == theirs.seen.keys() == expected
    for run in (ours, theirs):
        for seen in run.seen.values():
            assert seen["environ"]["TORCHELASTIC_MAX_RESTARTS"] == "3"


def test_a_spent_budget_ends_the_job(bench: Bench) -> None:
    then = "sys.exit(3 + restart)"  # the same failure again would not be tried again
    ours, theirs = bench.both("--max-restarts=1", "probe.py", then=then)
    assert ours.seen.keys() == theirs.seen.keys() == {(0, 0), (0, 1)}
    assert (ours.code, theirs.code) == (exit_codes.BUDGET_SPENT, 1)


@pytest.mark.parametrize(
    ("signo", "code"),
    [
        (signal.SIGTERM, exit_codes.PREEMPTED),
        (signal.SIGINT, exit_codes.SIGNALLED + signal.SIGINT),
        (signal.SIGHUP, exit_codes.SIGNALLED + signal.SIGHUP),
        (signal.SIGQUIT, exit_codes.SIGNALLED + signal.SIGQUIT),
    ],
)
def test_a_handled_signal_stops_the_workers(bench: Bench, signo: int, code: int) -> None:
    run = bench.run("torshrun", "probe.py", then=LISTEN, signo=signo)
    assert run.code == code, run.err
    passed_on = signo if signo == signal.SIGINT else signal.SIGTERM
    assert run.out == f"[0] got {passed_on.name}\n"


def test_torchrun_ends_with_1_whatever_the_signal(bench: Bench) -> None:
    run = bench.run("torchrun", "probe.py", then=LISTEN, signo=signal.SIGHUP)
    assert (run.code, run.out) == (1, "got SIGHUP\n")


def test_signals_to_handle(bench: Bench) -> None:
    """A signal that is not named has its usual effect; torchrun's worker is left behind then."""
    options = ("--signals-to-handle", "SIGTERM,SIGINT")
    for run in bench.both(*options, "probe.py", then=LISTEN, signo=signal.SIGHUP):
        assert run.code == -signal.SIGHUP


def test_a_notice_is_passed_on(bench: Bench) -> None:
    then = LISTEN.replace("(10, 12)", "(12,)")
    run = bench.run("torshrun", "probe.py", then=then, signo=signal.SIGUSR1)
    assert (run.code, run.out) == (0, "[0] got SIGUSR1\n"), run.err


def test_a_notice_that_is_named_stops_the_job(bench: Bench) -> None:
    options = ("--signals-to-handle", "SIGTERM,SIGUSR1")
    given = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "1"}  # torchrun waits that long, and twice
    for run in bench.both(*options, "probe.py", then=LISTEN, signo=signal.SIGUSR1, environ=given):
        assert run.out.endswith("got SIGUSR1\n"), run.err
        assert run.code == (128 + signal.SIGUSR1 if "[0]" in run.out else 1)


def test_a_notice_ends_torchrun_alone(bench: Bench) -> None:
    run = bench.run("torchrun", "probe.py", then=LISTEN, signo=signal.SIGUSR1)
    assert (run.code, run.out) == (-signal.SIGUSR1, "")


@pytest.mark.parametrize("names", ["SIGNOTHING", "SIGKILL", "SIGTERM,,SIGINT,SIGSTOP"])
def test_bad_signals_start_nothing(bench: Bench, names: str) -> None:
    run = bench.run("torshrun", "--signals-to-handle", names, "probe.py")
    assert (run.code, run.seen) == (2, {})
    assert "--signals-to-handle" in run.err


def test_the_shutdown_timeout_from_torchs_variable(bench: Bench) -> None:
    then = LISTEN.replace("sys.exit(0)", "pass")
    given = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "0"}
    run = bench.run("torshrun", "probe.py", then=then, signo=signal.SIGTERM, environ=given)
    assert run.code == exit_codes.PREEMPTED
    assert "at once" in run.err


RAISE = """
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    raise LookupError("nothing there")

main()
"""


def test_torchs_error_file_is_where_torchrun_has_it(bench: Bench) -> None:
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    for run in bench.both(*rendezvous, "--log-dir=LOGS", "probe.py", then=RAISE):
        written = json.loads(run.logs["attempt_0/0/error.json"])
        assert written["message"]["message"] == "LookupError: nothing there"
        assert "LookupError: nothing there" in run.err
        assert run.code == 1
