"""Recovery of sharded models: which copy counts, and what is beside the shards in a script."""

from __future__ import annotations

import pytest
from support.launcher import Launcher

BEGIN = """
    import os
    import signal
    import time
    import numpy as np
    import torsh_runtime as tr
    from torsh_runtime import nn, optim
    tr.init_process_group()
    nn.manual_seed(0)
    model = nn.Linear(6, 40)
    for each in model.parameters():
        each.data[...] = 0
    model = tr.FullyShardedDataParallel(model, min_num_params=1)
    parts = {"model": model, "optimizer": optim.SGD(model.parameters(), lr=0.5)}
    """


def test_a_copy_of_a_step_that_is_repeated_with_other_values_does_not_count(
    torshrun: Launcher,
) -> None:
    """Rank 1 commits step 2 alone and is lost, and again after the vote of the repeated step."""
    script = torshrun.script(
        BEGIN
        + """
    job = tr.elastic.join(**parts)
    group, start = tr.group.WORLD, os.environ["TORCHELASTIC_RESTART_COUNT"]
    gather, own_step, present = group.all_gather_numbers, parts["optimizer"].step, [0]

    def vote(numbers):
        told = gather(numbers)
        if present == [2, "0"]:
            present[1] = ""
            time.sleep(2)
            raise tr.PeerLost(1, "a vote that this rank has not heard of", 0)
        return told

    def step_or_die():
        if rank == 1 and start == "1" and present[0] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        own_step()

    if rank == 0:
        group.all_gather_numbers = vote
    parts["optimizer"].step = step_or_die
    print("joins at", job.number, flush=True)
    for step in job.steps(5):
        with step:
            count = os.environ["TORCHELASTIC_RESTART_COUNT"]
            loss = model(nn.Tensor(np.ones((1, 6), np.float32))).mean() * (1 + int(count))
            loss.backward()
            present[:] = step.number, count
            step.commit()
            if rank == 1 and start == "0" and step.number == 2:
                job._parts.shards._versions.wait()
                os.kill(os.getpid(), signal.SIGKILL)
    weights = model.state_dict()["weight"]
    print("weights", float(weights.min()), float(weights.max()))
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=3", script)
    assert code == 0, err
    assert out.count("joins at 2") == 1, out
    assert out.count("joins at 3") == 1, out
    told = {line.partition("weights ")[2] for line in out.splitlines() if "weights" in line}
    (ends,) = {tuple(map(float, each.split())) for each in told}
    assert ends[0] == ends[1] < 0


def test_flags_are_as_before_in_a_step_that_is_repeated(torshrun: Launcher) -> None:
    """Rank 1 is lost while the second pass of two is to average, which is said at its end."""
    script = torshrun.script(
        BEGIN
        + """
    del model, parts
    model = tr.fully_shard(nn.Linear(6, 40, bias=False))
    for each in model.parameters():
        each.data[...] = 0
    model.set_requires_gradient_sync(False)
    job = tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=0.5))
    inputs = nn.Tensor(np.ones((1, 6), np.float32))
    for step in job.steps(4):
        with step:
            model(inputs).sum().backward()
            model.set_requires_gradient_sync(True)
            model.set_reshard_after_forward(False)
            if rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and step.number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            model(inputs).sum().backward()
            model.set_requires_gradient_sync(False)
            step.commit()
    print("weights", {*map(float, model.state_dict()["weight"].flat)}, flush=True)
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert code == 0, err
    told = [line.partition("weights ")[2] for line in out.splitlines() if "weights" in line]
    assert len(told) == 2, out
    assert all("-4.0" in each and each.count(",") == 0 for each in told), told


def test_whole_models_beside_the_shards_have_to_be_alike(torshrun: Launcher) -> None:
    script = torshrun.script(
        BEGIN
        + """
    other = nn.Linear(2, 2)
    if rank == 1:
        other.bias.data[...] = 7
    try:
        tr.elastic.join(**parts, other=other, second=optim.SGD(other.parameters(), lr=0.5))
    except tr.ConfigError as error:
        print(error)
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert code == 0, err
    assert out.count("the state at elastic.join() differs between ranks: other/bias (che") == 2


def test_elastic_state_beside_the_shards_is_refused_by_name(torshrun: Launcher) -> None:
    script = torshrun.script(
        BEGIN
        + """
    state = tr.elastic.State(**parts)
    tr.elastic.join(**parts)
    try:
        state.commit()
    except tr.ConfigError as error:
        print(error)
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert code == 0, err
    assert out.count("tr.elastic.State needs the agent's memory, which tr.elastic.join() uses") == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.module.bias.requires_grad = True", "model/module.bias is trained"),
        (
            "parts['optimizer'].add_param_group({'params': [model.module.bias]})",
            "optimizer has 1 parameters in group 1",
        ),
    ],
)
def test_models_that_were_changed_in_a_step_are_refused_by_name(
    torshrun: Launcher, change: str, words: str
) -> None:
    script = torshrun.script(
        BEGIN
        + f"""
    model.module.bias.requires_grad = False
    parts["optimizer"] = optim.SGD([model.module.weight], lr=0.5)
    job = tr.elastic.join(**parts)
    for step in job.steps(5):
        with step:
            if step.number == 1:
                {change}
            model(nn.Tensor(np.ones((1, 6), np.float32))).mean().backward()
            if step.number == 3 and rank == 1 and "TORSH_REPLACEMENT" not in os.environ:
                os.kill(os.getpid(), signal.SIGKILL)
            step.commit()
    """
    )
    code, _, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert code != 0, err
    assert "elastic.join() after a loss differs between ranks" in err
    assert words in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.module.bias.requires_grad = True", "models: there model/module.bias is trained"),
        (
            "parts['optimizer'].add_param_group({'params': [model.module.bias]})",
            "optimizers: there optimizer has 1 parameters in group 1, and here nothing",
        ),
    ],
)
def test_no_start_resumes_with_other_parameters_trained_than_were_kept(
    torshrun: Launcher, change: str, words: str
) -> None:
    script = torshrun.script(
        BEGIN
        + f"""
    model.module.bias.requires_grad = False
    parts["optimizer"] = optim.SGD([model.module.weight], lr=0.5)
    job = tr.elastic.join(**parts)
    print("joins at", job.number, flush=True)
    for step in job.steps(5):
        with step:
            if step.number == 1:
                {change}
            model(nn.Tensor(np.ones((1, 6), np.float32))).mean().backward()
            if step.number == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            step.commit()
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=3", script)
    assert code == 1, err
    assert f"the state in memory is of other {words}" in err
    assert out.count("joins at") == 2, out
