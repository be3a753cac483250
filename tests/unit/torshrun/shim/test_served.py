"""Which of torchrun's command lines go to torch's own launcher."""

from __future__ import annotations

import pytest

from torshrun.shim.served import why_not


@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "--nproc-per-node 2 train.py --rdzv-backend mine",
        "--nproc-per-node=gpu --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint a:1 train.py",
        "--standalone --nproc_per_node auto -m package",
        "--event-log-handler null train.py",
        "--help --logs-specs mine",
    ],
)
def test_most_are_torshruns(line: str) -> None:
    assert why_not(line.split(), {}) == ""


@pytest.mark.parametrize("line", ["--no-such-option train.py", "--nproc-per-node 2x train.py", ""])
def test_mistakes_are_torshruns_to_tell(line: str) -> None:
    assert why_not(line.split(), {}) == ""


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("--rdzv-backend mine train.py", "'mine'"),
        ("--rdzv-backend etcd-v2 train.py", "'etcd-v2'"),
        ("--logs-specs mine train.py", "--logs-specs mine"),
        ("--event-log-handler mine train.py", "--event-log-handler mine"),
        ("--nproc-per-node xpu train.py", "xpu"),
    ],
)
def test_plugins_and_devices_of_torchs_are_not(line: str, named: str) -> None:
    assert named in why_not(line.split(), {})


def test_the_environment_counts_too() -> None:
    assert "'mine'" in why_not(["train.py"], {"PET_RDZV_BACKEND": "mine"})
