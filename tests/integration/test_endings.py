"""What is told of workers' ends: by what ended them, and not by what they wrote long before."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.launcher import Launcher
from support.nodes import Job

SCENES = """
import logging
import traceback
try: import no_such_package
except ImportError: logging.exception("using the slow path")
def leaves_by_message():
    for step in range(30): logging.warning("step %d", step)
    sys.exit("quota used up")
def gives_a_code():
    print("done", file=sys.stderr)
    sys.exit(3)
def logs_wrongly():
    logging.error("loss %d", "nan")
    sys.exit("lr must be positive")
def fails_at_exit_too():
    import atexit
    def bye():
        try: raise RuntimeError("broken pipe at exit")
        except RuntimeError: traceback.print_exc()
    atexit.register(bye)
    raise ValueError("label out of range")
def handles_and_leaves():
    try: raise OSError(28, "No space left on device")
    except OSError: traceback.print_exc()
    sys.exit(1)
def leaves_at_once():
    print("97 C, leaving", file=sys.stderr, flush=True)
    os._exit(4)
def is_killed():
    os.kill(os.getpid(), 9)
SCENES = [leaves_by_message, gives_a_code, logs_wrongly, fails_at_exit_too, handles_and_leaves,
          leaves_at_once, is_killed]
SCENES[int(os.environ["TORCHELASTIC_RESTART_COUNT"])]()
"""


LOCKS = """
import fcntl, pathlib, sqlite3, time
rank = int(os.environ["RANK"])
scene = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
name = f"{scene}.db"
def wants_in_with():
    with open(name, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
def wants_range():
    file = open(name, "w")
    try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error: raise RuntimeError("could not acquire the lock") from error
def wants_database():
    base = sqlite3.connect(name, timeout=0.1, isolation_level=None)
    base.execute("begin immediate")
if rank == 1:
    while not pathlib.Path(f"{scene}.held").exists(): time.sleep(0.01)
    [wants_in_with, wants_range, wants_database][scene]()
if scene < 2: (fcntl.flock, fcntl.lockf)[scene](file := open(name, "w"), fcntl.LOCK_EX)
else: (base := sqlite3.connect(name, isolation_level=None)).execute("begin immediate")
pathlib.Path(f"{scene}.held").touch()
time.sleep(60)
"""


def test_who_holds_a_lock_is_told_where_another_rank_could_not_have_it(torshrun: Launcher) -> None:
    path = torshrun.folder / "events"
    options = (
        "--nproc-per-node=2",
        "--max-restarts=2",
        "--restart-backoff=0",
        "--retry-same-start",
    )
    _, _, err = torshrun.run(*options, "--events", str(path), torshrun.script(LOCKS))
    found = [(each["ranks"], each["certainty"]) for each in events(path, "root_cause")]
    assert found == [([0, 1], "undecided")] * 3, err
    for scene in range(3):
        assert re.search(rf"The lock of \S*/{scene}\.db was held by rank 0, \S+ \(pid \d+\)\.", err)


def events(path: Path, name: str) -> list[dict[str, Any]]:
    found = map(json.loads, path.read_text().splitlines())
    return [event for event in found if event["event"] == name]


def test_what_was_handled_before_is_not_told_as_the_cause(torshrun: Launcher) -> None:
    path = torshrun.folder / "events"
    options = ("--max-restarts=6", "--restart-backoff=0", "--retry-same-start")
    _, _, err = torshrun.run(*options, "--events", str(path), torshrun.script(SCENES))
    causes = events(path, "root_cause")
    assert [(each["kind"], each["certainty"]) for each in causes] == [
        ("exit code", "certain"),
        ("exit code", "certain"),
        ("exit code", "certain"),
        ("exception", "certain"),
        ("disk full", "likely"),
        ("exit code", "certain"),
        ("killed by a signal", "certain"),
    ]
    message, code, wrong_log, at_exit, handled, at_once, killed = _reports(err)
    assert "  | quota used up\n  earlier in its stderr, an exception that it seems" in message
    assert "It ended itself by sys.exit() or SystemExit" in code
    assert "\n  | lr must be positive\n" in wrong_log
    assert "  its traceback:\n" in at_exit
    assert at_exit.index("| ValueError: label out of range") < at_exit.index("| RuntimeError: bro")
    assert "  the last traceback in its stderr:\n" in handled
    assert "\n  | 97 C, leaving\n" in at_once
    assert "Neither an exception nor sys.exit() ended its Python" in at_once
    assert "what to do: Install it" not in err
    assert "No module named" not in killed.split("\n")[0]


def _reports(err: str) -> list[str]:
    starts = [part for part in err.split("torshrun: rank 0 ") if "failed first: " in part[:30]]
    return [part.partition("  attempt ")[0] for part in starts]


CHOOSES = """
import json
import traceback
import numpy as np
import torsh_runtime as tr
def train():
    if rank == 1: raise IndexError("sample 10")
    tr.barrier()
def log():
    with open(f"log.{rank}", "a") as file: file.write(json.dumps(traceback.format_exc()))
def exits():
    try: train()
    except Exception: log(); sys.exit(1)
def exits_at_once():
    try: train()
    except Exception: log(); os._exit(1)
def returns():
    try: train()
    except Exception: log(); return 1
tr.init_process_group(timeout=20)
sys.exit([exits, exits_at_once, returns][int(os.environ["TORCHELASTIC_RESTART_COUNT"])]())
"""


def test_an_exception_that_only_a_log_has_is_why_a_script_chose_its_exit_code(
    torshrun: Launcher,
) -> None:
    path = torshrun.folder / "events"
    options = ("--nproc-per-node=2", "--max-restarts=2", "--restart-backoff=0")
    options += ("--retry-same-start", "--events", str(path))
    _, _, err = torshrun.run(*options, torshrun.script(CHOOSES))
    causes = events(path, "root_cause")
    assert [(each["ranks"], each["kind"], each["certainty"]) for each in causes] == [
        ([1], "exception", "certain"),
        ([1], "exception", "certain"),
        ([1], "exception", "likely"),  # it might have gone on
    ]
    assert err.count("  | IndexError: sample 10\n") == 3
    for call in ("sys.exit()", "os._exit()"):
        assert f"the exception that it handled when it called {call}:\n" in err
    assert "an exception that it had handled, and written to a log:\n" in err


REFUSES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.parse_args(["--lr", "high"])
"""


def test_usage_tells_more_than_the_exception_that_led_to_it(torshrun: Launcher) -> None:
    path = torshrun.folder / "events"
    code, _, err = torshrun.run("--events", str(path), torshrun.script(REFUSES))
    (cause,) = events(path, "root_cause")
    assert (code, cause["kind"]) == (2, "wrong arguments")
    assert "argument --lr: invalid float value: 'high'\n  attempt" not in err
    assert "Traceback" not in err


CLEANS_UP = """
import numpy as np
import torsh_runtime as tr
tr.init_process_group(timeout=1)
try:
    for step in range(5):
        if rank == 2 and step == 3: raise ValueError("bad label -3")
        tr.all_reduce(np.ones(4))
finally:
    while rank == 2:
        time.sleep(60)
"""


def test_an_exception_that_a_long_clean_up_holds_back_is_the_cause(torshrun: Launcher) -> None:
    path = torshrun.folder / "events"
    options = ("--nproc-per-node=3", "--events", str(path))
    code, _, err = torshrun.run(*options, torshrun.script(CLEANS_UP))
    (cause,) = events(path, "root_cause")
    assert (code, cause["ranks"], cause["kind"]) == (1, [2], "exception")
    assert "the traceback of an exception that had not got to its end:" in err
    assert "  | ValueError: bad label -3\n" in err
    assert "ranks 0-1 timed out waiting" in err


def test_the_exit_code_is_the_exceptions_although_torshrun_stops_what_is_left_of_it(
    torshrun: Launcher,
) -> None:
    script = """
import atexit
def ends():
    open("ends", "w").close()
    time.sleep(60)
if rank == 1:
    atexit.register(ends)
    raise ValueError("no tokens")
while not os.path.exists("ends"):
    time.sleep(0.02)
sys.exit(9)
"""
    path = torshrun.folder / "events"
    options = ("--nproc-per-node=2", "--events", str(path))
    code, _, err = torshrun.run(*options, torshrun.script(script))
    assert "rank 1" in events(path, "root_cause")[0]["summary"]
    (failed,) = events(path, "worker_failed")
    (job,) = events(path, "job_finished")
    assert (code, job["code"], failed["rank"], failed["code"], failed["signal"]) == (1, 1, 1, 1, "")
    assert "exit code 1, stopped by torshrun before it had ended" in err


def test_the_last_line_names_whom_the_report_names(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
import numpy as np
import torsh_runtime as tr
tr.init_process_group(timeout=20)
tr.barrier()
if rank == 1: sys.exit()
tr.barrier()
"""
    )
    path = torshrun.folder / "events"
    with Job.over_tcp(torshrun, "2", "--nproc-per-node=1") as job:
        nodes = [job.start("--events", str(path), script), job.start(script)]
        for node in nodes:
            node.end(60)
    (cause,) = events(path, "root_cause")
    assert (cause["ranks"], cause["kind"]) == ([1], "early exit")
    (finished,) = events(path, "job_finished")
    assert finished["outcome"] == "failed"
    for node in nodes:
        assert "the job is over (failed): rank 1: early exit" in node.output
