"""Models that torch's fully_shard() has sharded, in a job that loses workers: the same bits."""

from __future__ import annotations

import re
import signal
from functools import cache
from pathlib import Path
from random import Random

import pytest
from support.forked_scripts import printed_by_ranks
from support.launcher import Launcher
from support.nodes import Job

pytest.importorskip("torch")

SCRIPT = str(Path(__file__).parent.parent / "support" / "recovering_fsdp2.py")
LAUNCH = ("--nproc-per-node=3", "--max-restarts=9", "--preload=auto", SCRIPT)
STEPS = 12
WITHIN = 300
"""Seconds for a run, since each process imports torch's compiler for some seconds."""
POINTS = ["before", "forward", "backward", "between", "after", "vote", "half", "committed"]


def told(out: str) -> tuple[frozenset[str], frozenset[str]]:
    """What was committed, and the digests of each rank's parts at the end."""
    steps = re.findall(r"^\[\d\] (step .+)$", out, re.MULTILINE)
    ends = re.findall(r"end (\d) \d+ (\w+)", out)
    return frozenset(steps), frozenset(map(" ".join, ends))


def run(launcher: Launcher, *losses: str) -> tuple[int, str, str]:
    launcher.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(launcher.folder / "compiled")}
    return launcher.run(*LAUNCH, str(STEPS), *losses, within=WITHIN)


@cache
def undisturbed(folder: Path) -> tuple[frozenset[str], frozenset[str]]:
    loads = ("torch._dynamo", "torch.distributed.fsdp", "torsh_runtime.integrations.torch")
    environ = {"TORCHELASTIC_RESTART_COUNT": "0"}
    outputs = printed_by_ranks(
        Path(SCRIPT), 3, str(STEPS), folder=folder, loads=loads, environ=environ
    )
    return told("".join(f"[0] {line}\n" for out in outputs for line in out.splitlines()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


def check(torshrun: Launcher, folder: Path, losses: list[str]) -> None:
    code, out, err = run(torshrun, *losses)
    assert code == 0, err
    found, expected = told(out), undisturbed(folder)
    assert found[0] <= expected[0]
    assert {each.split()[1] for each in found[0]} == {*map(str, range(STEPS))}
    assert found[1] == expected[1]
    pids = {*re.findall(r"start \d (\d+) \d+", out)}
    assert len(pids) == 3 + len(losses), out


def test_the_others_go_on_with_the_same_bits_from_every_point(
    torshrun: Launcher, folder: Path
) -> None:
    losses = ["kill:forward:2:1", "kill:backward:3:2", "raise:between:5:0", "kill:vote:7:1"]
    check(torshrun, folder, [*losses, "kill:half:9:2", "kill:committed:10:0"])


def test_kills_at_random_points(torshrun: Launcher, folder: Path) -> None:
    random = Random()
    steps = sorted(random.sample(range(STEPS), 3))
    losses = [f"kill:{random.choice(POINTS)}:{step}:{random.randrange(3)}" for step in steps]
    check(torshrun, folder, losses)


def nodes(launcher: Launcher, *losses: str) -> tuple[frozenset[str], frozenset[str]]:
    """Run it on two nodes, whose workers count as those of different hosts."""
    launcher.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(launcher.folder / "compiled")}
    options = ("--pid-namespace", "--nproc-per-node=2", "--max-restarts=9", "--preload=auto")
    with Job.over_tcp(launcher, "2", *options) as job:
        started = [job.start(SCRIPT, "6", *losses) for _ in range(2)]
        ends = [node.end(WITHIN) for node in started]
    assert [code for code, _ in ends] == [0, 0], ends
    return told("\n".join(output for _, output in ends))


def test_workers_of_several_nodes_are_replaced(torshrun: Launcher) -> None:
    expected = nodes(torshrun)
    found = nodes(torshrun, "kill:backward:2:1", "kill:half:3:2", "kill:committed:4:3")
    assert found[0] <= expected[0]
    assert len(found[1]) == 4
    assert found[1] == expected[1]


def test_a_spare_has_the_parts_of_a_lost_node_while_the_others_go_on(torshrun: Launcher) -> None:
    expected = nodes(torshrun)
    torshrun.environ |= {"PAUSE": "0.3"}
    options = ("--pid-namespace", "--nproc-per-node=2", "--max-restarts=9", "--preload=auto")
    with Job.over_tcp(torshrun, "2", *options) as job:
        for _ in range(2):
            job.start(SCRIPT, "6").wait_for("waiting|round")
        job.start(SCRIPT, "6").wait_for("maximum")
        job.nodes[1].wait_for("step 2 ")
        job.nodes[1].send(signal.SIGKILL)
        ends = [job.nodes[number].end(WITHIN) for number in (0, 2)]
        job.nodes[1].close()
        outputs = [node.output for node in job.nodes]
    assert [code for code, _ in ends] == [0, 0], outputs
    found = told("\n".join(outputs))
    assert found[0] <= expected[0], outputs
    assert found[1] == expected[1], outputs
    starts = re.findall(r"start (\d) \d+ (\d)", "\n".join(outputs))
    assert sorted(rank for rank, step in starts if step != "0") == ["2", "3"], outputs


REFUSED = {
    "an attribute that is not known": (
        "fully_shard(model); model._get_fsdp_state()._novelty = 1",
        "FSDPState of fully_shard() has '_novelty'",
    ),
    "a model that is left out": (
        "fully_shard(model); other = fully_shard(torch.nn.Linear(2, 2))",
        "was not given a FSDPLinear that is sharded",
    ),
    "offloaded": (
        "from torch.distributed.fsdp import CPUOffloadPolicy\n"
        "    fully_shard(model, offload_policy=CPUOffloadPolicy(pin_memory=False))",
        "it is offloaded",
    ),
    "a mesh of its own": (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "    fully_shard(model, mesh=init_device_mesh('cpu', (1, 2), mesh_dim_names=('a', 'b')))",
        "it is sharded in hybrid",
    ),
}


def test_what_is_not_supported_is_refused_by_name(torshrun: Launcher) -> None:
    cases = "".join(
        f"""
    try:
        model, other = torch.nn.Linear(4, 4), None
        {how}
        tr.elastic.join(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    except tr.ConfigError as error:
        print(error)
    model = other = None
    """.replace("\n    fully", "\n        fully")
        for how, _ in REFUSED.values()
    )
    script = torshrun.script(
        """
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    import torsh_runtime as tr
    dist.init_process_group("torsh")
    """
        + cases
    )
    torshrun.share_torch()
    launch = ("--nproc-per-node=2", "--max-restarts=1", script)
    code, out, err = torshrun.run(*launch, within=WITHIN)
    assert code == 0, err
    for case, (_, words) in REFUSED.items():
        assert out.count(words) == 2, (case, out)
