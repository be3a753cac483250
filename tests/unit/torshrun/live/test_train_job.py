"""What Kubeflow Trainer is told of a job, and what a server that fails costs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import make_certificates
from support.processes import soon
from support.train_jobs import TrainerServer, metrics_of, mistake

from torsh_runtime.monitoring.pace import Pace
from torshrun.config.job import ProgressServer
from torshrun.live import sender
from torshrun.live.snapshot import Counted, Noted, Snapshot
from torshrun.live.train_job import ProgressReporter, status_of

TIME = "2026-11-27T18:00:00Z"


def a_snapshot(**facts: Any) -> Snapshot:
    values: dict[str, Any] = {
        "run_id": "digits",
        "role": "default",
        "started": 0.0,
        "heartbeat": 0.0,
        "state": "running",
        "pids": (1,),
        "pace": Pace(step=10, total=40, per_second=2.0, scalars={"loss": 0.25}),
    }
    return Snapshot(**values | facts)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trainer")
    make_certificates(home)
    return home


@pytest.fixture
def trainer(certificates: Path) -> Iterator[TrainerServer]:
    with TrainerServer(certificates) as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(sender, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(sender, "CLOSE_SECONDS", 20.0)  # a slow machine is no error


class Telling:
    """A reporter, what it sees, and what it complains of."""

    def __init__(self, trainer: TrainerServer, **facts: Any) -> None:
        self.latest = a_snapshot(**facts)
        self.looked = 0
        self.said: list[str] = []
        url, ca, token = (
            trainer.environ[f"KUBEFLOW_TRAINER_SERVER_{name}"]
            for name in ("URL", "CA_CERT", "TOKEN")
        )
        self.reporter = ProgressReporter(
            ProgressServer(url=url, ca_file=ca, token_file=token), self._look, self.said.append
        )
        self.reporter.start()

    def _look(self) -> Snapshot:
        self.looked += 1
        return self.latest

    def await_looks(self) -> None:
        """Until it has looked twice more: what was there before has been sent then."""
        before = self.looked
        assert soon(lambda: self.looked >= before + 2)


def test_steps_time_left_and_metrics() -> None:
    mine = Noted([Counted(scalars={"accuracy": 0.9375}), Counted(scalars={"loss": 9.0})])
    status = status_of(a_snapshot(noted=mine))
    assert (status["progressPercentage"], status["estimatedRemainingSeconds"]) == (25, 15)
    assert metrics_of(status) == {
        "current_step": "10",
        "total_steps": "40",
        "loss": "0.25",
        "accuracy": "0.9375",
    }


def test_a_bar_tells_more_than_steps_do() -> None:
    status = status_of(a_snapshot(pace=Pace(step=None, total=9, done=3)))
    assert status["progressPercentage"] == 33
    assert "estimatedRemainingSeconds" not in status


@pytest.mark.parametrize(
    ("pace", "told"),
    [
        (None, {}),
        (Pace(), {}),
        (Pace(step=3), {}),
        (Pace(step=3, scalars={"loss": 0.5}), {"current_step": "3", "loss": "0.5"}),
        (Pace(step=3, total=0), {"current_step": "3"}),
        (Pace(step=90, total=40, per_second=1.0), {"current_step": "90", "total_steps": "40"}),
        (Pace(step=-1, total=2**61, per_second=1e-9), {"total_steps": "2.30584e+18"}),
        (Pace(scalars={"": 1.0, "a" * 99: float("nan"), "é": -1e300}), {"a" * 64: "nan"}),
        (Pace(scalars={f"m{number}": 0.1 for number in range(999)}), {"m255": "0.1"}),
    ],
)
def test_whatever_workers_tell_is_fit_for_a_train_job(
    pace: Pace | None, told: dict[str, str]
) -> None:
    status = status_of(a_snapshot(pace=pace))
    assert mistake({**status, "lastUpdatedTime": TIME}) == ""
    assert metrics_of(status).items() >= told.items()
    assert status.get("progressPercentage", 0) < 100
    assert bool(status) == bool(told)


def test_each_change_is_told_once_and_the_end(trainer: TrainerServer) -> None:
    telling = Telling(trainer)
    telling.await_looks()
    telling.await_looks()
    assert len(trainer.statuses) == 1
    trainer.token_file.write_text("another")  # as it is replaced before it ends
    telling.latest = a_snapshot(pace=Pace(step=39, total=40, scalars={"loss": 0.125}))
    telling.await_looks()
    telling.latest = a_snapshot(pace=None, state="finished", succeeded=True)
    telling.reporter.close()
    assert [each["progressPercentage"] for each in trainer.statuses] == [25, 97, 100]
    assert metrics_of(trainer.statuses[-1])["loss"] == "0.125"
    assert (trainer.refused, telling.said) == ([], [])


def test_who_has_nothing_to_tell_tells_nothing(trainer: TrainerServer) -> None:
    """Not the end either: a worker may tell of itself there, and what comes last holds."""
    for facts in ({"pace": None}, {"node_rank": 1}):
        telling = Telling(trainer, **facts)
        telling.await_looks()
        telling.latest = a_snapshot(**facts, state="finished", succeeded=True)
        telling.reporter.close()
    assert trainer.statuses == []


def test_a_server_that_is_well_again_is_told_all(trainer: TrainerServer) -> None:
    trainer.is_well = False
    telling = Telling(trainer)
    assert soon(lambda: len(trainer.refused) > 2)
    trainer.is_well = True
    assert soon(lambda: bool(trainer.statuses))
    telling.reporter.close()
    (line,) = telling.said
    assert "no steps reach https://127.0.0.1:" in line
    assert "Internal Server Error" in line


def test_files_of_credentials_that_are_not_what_they_ought_to_be(
    trainer: TrainerServer, tmp_path: Path
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "lines").write_text("secret\r\nX-Injected: 1")
    for token, why in (("none", "No such file"), ("fifo", "no token"), ("lines", "no token")):
        trainer.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"] = str(tmp_path / token)
        telling = Telling(trainer)
        telling.await_looks()
        telling.reporter.close()
        (line,) = telling.said
        assert why in line
        assert "secret" not in line
    assert trainer.statuses == trainer.refused == []


def test_a_server_that_never_answers_does_not_hold_the_job(
    trainer: TrainerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(sender, "CLOSE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        trainer.environ["KUBEFLOW_TRAINER_SERVER_URL"] = url
        telling = Telling(trainer)
        assert soon(lambda: bool(telling.said))
        began = time.monotonic()
        telling.reporter.close()
        assert time.monotonic() - began < 10
        assert soon(lambda: not telling.reporter._thread.is_alive())
