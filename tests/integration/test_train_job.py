"""Jobs whose progress Kubeflow Trainer is told, at an HTTPS server with an authority of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.certificates import make_certificates
from support.launcher import Launcher
from support.nodes import Node
from support.ports import free_port
from support.processes import soon
from support.train_jobs import TOKEN, TrainerServer, metrics_of

TRAINING = """
import torsh_runtime as tr
for step in range(21):
    loss = {"loss": 1.0 / (step + 1)} if rank == 0 else {}
    tr.monitoring.step(step, total=40, **loss)
    time.sleep(0.01)
open(f"half-{rank}", "w").close()
while not os.path.exists("go"): time.sleep(0.01)
for step in range(21, 40):
    tr.monitoring.step(step, total=40)
if os.path.exists("fails"): sys.exit(3)
"""


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trainer")
    make_certificates(home)
    return home


@pytest.fixture
def trainer(certificates: Path) -> Iterator[TrainerServer]:
    with TrainerServer(certificates) as server:
        yield server


def test_pods_of_a_train_job(torshrun: Launcher, trainer: TrainerServer) -> None:
    """Each has what Kubeflow Trainer sets; the one with rank 0 tells what all do."""
    script = torshrun.script(TRAINING)
    pods = {
        **torshrun.environ,
        **trainer.environ,
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
    }
    nodes = []
    for index in ("0", "1"):
        rank = {"JOB_COMPLETION_INDEX": index, "PET_NODE_RANK": index}
        url = {} if index == "0" else {"KUBEFLOW_TRAINER_SERVER_URL": f"{trainer.url}/another"}
        nodes.append(Node(torshrun.start(script, env={**pods, **rank, **url})))
    torshrun.wait_for("half-0", "half-1")
    assert soon(lambda: bool(trainer.statuses), 30), nodes[0].output
    torshrun.make("go")
    for node in nodes:
        code, output = node.end()
        node.close()
        assert (code, "warning" in output) == (0, False), output
    *_, half, done = trainer.statuses
    assert 0 <= half["progressPercentage"] <= 50
    assert metrics_of(half)["total_steps"] == "40"
    assert (done["progressPercentage"], done["estimatedRemainingSeconds"]) == (100, 0)
    assert metrics_of(done) == {
        "current_step": "39",
        "total_steps": "40",
        "loss": "0.047619",
    }
    assert trainer.refused == []


def test_a_job_that_fails_is_not_told_as_done(torshrun: Launcher, trainer: TrainerServer) -> None:
    torshrun.environ |= trainer.environ
    for name in ("go", "fails"):
        torshrun.make(name)
    assert torshrun.run(torshrun.script(TRAINING))[0] == 3
    assert trainer.statuses[-1]["progressPercentage"] == 97
    told = len(trainer.statuses)
    torshrun.environ["DISABLE_KUBEFLOW_INTEGRATION"] = "true"
    assert torshrun.run(torshrun.script(TRAINING))[0] == 3
    assert len(trainer.statuses) == told


def test_a_server_that_takes_nothing_costs_one_line(
    torshrun: Launcher, trainer: TrainerServer, certificates: Path, tmp_path: Path
) -> None:
    torshrun.make("go")
    script = torshrun.script(TRAINING)
    wrong = tmp_path / "wrong"
    wrong.write_text("not\nthe token\n")
    for changed, why in (
        ({"KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificates / "another-ca.pem")}, "CERTIFICATE"),
        ({"KUBEFLOW_TRAINER_SERVER_TOKEN": str(wrong)}, "has no token"),
        ({"KUBEFLOW_TRAINER_SERVER_URL": f"{trainer.url}/x"}, "Not Found"),
    ):
        torshrun.environ |= {**trainer.environ, **changed}
        code, _, err = torshrun.run(script)
        (line,) = err.splitlines()
        assert code == 0
        assert "warning: no steps reach https://127.0.0.1:" in line
        assert why in line
        assert TOKEN not in line
    assert trainer.statuses == []


def test_variables_that_cannot_be(torshrun: Launcher, trainer: TrainerServer) -> None:
    torshrun.make("go")
    torshrun.environ |= {**trainer.environ, "KUBEFLOW_TRAINER_SERVER_TOKEN": ""}
    code, _, err = torshrun.run(torshrun.script(TRAINING))
    (line,) = err.splitlines()
    assert code == 0
    assert line.startswith("torshrun: Kubeflow Trainer is not told how far the job is: ")
