"""Replacements that are started while the others still leave the lost round."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable

import pytest
from support.launcher import Launcher
from support.processes import soon

PROGRAM = """
    import pathlib
    import torsh_runtime as tr
    from torsh_runtime import nn, optim
    how, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    first = os.environ["TORSH_ROUND"] == "0"
    def note(signo, frame):
        print("noticed", rank, flush=True)
    if "TORSH_REPLACEMENT" in os.environ:
        print("ahead", os.environ["TORCHELASTIC_RESTART_COUNT"], os.getpid(), flush=True)
        first_ahead = not (folder / "ahead").exists()
        (folder / "ahead").touch()
        if how == "dies" and first_ahead:
            raise ValueError("dies ahead")
    elif first:
        signal.signal(signal.SIGUSR1, note)
    tr.init_process_group()
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(nn.Linear(2, 1))
    if how == "notice":
        signal.signal(signal.SIGUSR1, note)
    job = tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1))
    print("joined", rank, job.number, flush=True)
    for step in job.steps(6):
        with step:
            if first and step.number == 3 and not (folder / "lost").exists():
                if rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                while not (folder / "go").exists():
                    time.sleep(0.02)
                if how == "fails":
                    raise ValueError("they cannot go on")
                (folder / "lost").touch()
            step.commit()
    print("end", rank, os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
    """


class Result:
    """Holds how a job ended whose rank 1 was lost in step 3."""

    def __init__(self, torshrun: Launcher, how: str, act: Callable[[int], None]) -> None:
        """Run the job; once a process was started ahead, act, and let the survivors go."""
        folder = torshrun.folder
        events, out_path = folder / "events", folder / "out"
        launch = ("--nproc-per-node=3", "--max-restarts=1", f"--events={events}")
        with out_path.open("w") as file:
            process = torshrun.start(
                *launch, torshrun.script(PROGRAM), how, str(folder), stdout=file
            )
            assert soon((folder / "ahead").exists, 60)
            assert soon(lambda: "ahead" in out_path.read_text(), 60)
            if how == "dies":
                assert soon(lambda: events.read_text().count('"worker_exited"') == 2, 60)
            assert re.findall("ahead|joined 1 3", out_path.read_text()) == ["ahead"]
            act(process.pid)
            (folder / "go").touch()
            _, self.err = process.communicate(timeout=100)
        self.code, self.out = process.returncode, out_path.read_text()
        self.events = [json.loads(line) for line in events.read_text().splitlines()]

    def count(self, event: str) -> int:
        return sum(each["event"] == event for each in self.events)


def nothing(pid: int) -> None:
    pass


def test_it_starts_before_the_others_have_left_the_round(torshrun: Launcher) -> None:
    found = Result(torshrun, "parks", nothing)
    assert found.code == 0, found.err
    assert found.out.count("ahead 1 ") == 1
    assert found.out.count("joined 1 3") == 1
    assert sorted(re.findall("end .*", found.out)) == ["end 0 1", "end 1 1", "end 2 1"]
    assert found.count("workers_started") == 2
    assert found.count("worker_failed") == 1
    assert found.err.count("replaced while the others continue") == 1


def test_another_takes_the_place_of_one_that_dies_meanwhile(torshrun: Launcher) -> None:
    found = Result(torshrun, "dies", nothing)
    assert found.code == 0, found.err
    assert found.out.count("ahead 1 ") == 2
    assert found.out.count("joined 1 3") == 1
    assert found.err.count("replaced while the others continue") == 1
    assert "dies ahead" in found.err
    assert "restarting" not in found.err


def test_it_ends_with_the_others_if_they_cannot_go_on(torshrun: Launcher) -> None:
    found = Result(torshrun, "fails", nothing)
    assert found.code == 0, found.err
    assert "restarting" in found.err
    assert "rank 1 most likely failed first: killed by SIGKILL" in found.err
    assert "SIGTERM" not in found.err  # the report tells of the lost worker of that rank alone
    assert "replaced" not in found.err
    assert sorted(re.findall("end .*", found.out)) == ["end 0 1", "end 1 1", "end 2 1"]


def test_a_notice_reaches_it_when_it_has_joined(torshrun: Launcher) -> None:
    found = Result(torshrun, "notice", lambda pid: os.kill(pid, signal.SIGUSR1))
    assert found.code == 0, found.err
    assert sorted(re.findall("noticed .", found.out)) == ["noticed 0", "noticed 1", "noticed 2"]
    assert sorted(re.findall("end .*", found.out)) == ["end 0 1", "end 1 1", "end 2 1"]


def test_a_request_to_stop_ends_it(torshrun: Launcher) -> None:
    found = Result(torshrun, "stops", lambda pid: os.kill(pid, signal.SIGTERM))
    assert found.code == 75, found.err
    pid = int(re.findall(r"ahead 1 (\d+)", found.out)[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
