"""Programs that communicate before join(), that join() refuses, or that make groups after it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.launcher import Launcher

from torshrun.agent.recovery import NOTICE

BEGIN = """
    import numpy as np
    import torsh_runtime as tr
    from torsh_runtime import nn, optim
    tr.init_process_group()
    nn.manual_seed(0)
    model = tr.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """
    for step in job.steps(6):
        with step:
            (model(nn.Tensor(np.ones((2, 4), np.float32))) ** 2).mean().backward()
            if step.number == 2 and rank == 1 and not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            step.commit()
"""
JOIN = "    job = tr.elastic.join(model=model, optimizer=optimizer)\n"


def test_a_collective_before_join_restarts_all_once(torshrun: Launcher) -> None:
    body = BEGIN + "    tr.all_reduce(np.ones(1))\n" + JOIN + TRAIN + "    print('end', rank)\n"
    code, out, err = torshrun.run(
        "--nproc-per-node=3", "--max-restarts=5", torshrun.script(body), within=120
    )
    assert code == 0, err
    assert sorted(re.findall(r"end (\d)", out)) == ["0", "1", "2"]
    assert "rank 1: two replacements in a row have ended with exit code 1 before" in err, err
    assert err.count("replaced while the others continue") == 2, err
    assert err.count("restarting") == 1, err
    assert ", 2 of 5 restarts left" in err


def test_who_hears_from_a_peer_that_the_next_round_is_over_goes_on_too(torshrun: Launcher) -> None:
    """A peer gives up meeting the others when its agent tells it, which rank 2 hears of later."""
    late = """
    import time
    from torsh_runtime.elastic.rounds import Rounds
    class Late(Rounds):
        def _abort(self, left):
            time.sleep(3 if self.number == 1 else 0)
            return Rounds.abort_at_once(self, left)
    Rounds.abort_at_once = Rounds._abort
    if rank == 2:
        Rounds._abort = Late._abort
    if "TORSH_REPLACEMENT" in os.environ and not os.path.exists("killed_again"):
        time.sleep(1.5)
        open("killed_again", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    end = "    print('end', rank, os.getpid())\n"
    begin = "    print('joins', rank, os.getpid())\n"
    script = torshrun.script(BEGIN + late + JOIN + begin + TRAIN + end)
    code, out, err = torshrun.run("--nproc-per-node=3", "--max-restarts=3", script)
    assert code == 0, err
    assert err.count("replaced while the others continue") == 2, err
    assert len(re.findall(r"joins \d", out)) == 4, err
    for rank in (0, 2):
        assert re.findall(rf"joins ({rank} \d+)", out) == re.findall(rf"end ({rank} \d+)", out)


def test_what_join_refuses_uses_no_restarts(torshrun: Launcher) -> None:
    body = BEGIN + "    tr.elastic.join(model=model, optimizer=optimizer, number=3)\n"
    code, _, err = torshrun.run("--nproc-per-node=2", "--max-restarts=5", torshrun.script(body))
    assert code == 1
    assert "tr.elastic.join() cannot recover 'number'" in err
    assert "as tr.elastic.join() refuses what the program does, which no restart changes" in err
    assert "restarting" not in err


def test_what_does_not_fit_in_a_replacement_has_all_start_again(torshrun: Launcher) -> None:
    """Its batches have another size, as if computed from another number of ranks."""
    body = """
    size = 4 if "TORSH_REPLACEMENT" in os.environ else 2
    sampler = tr.elastic.ElasticSampler(100, batch_size=size)
    job = tr.elastic.join(model=model, optimizer=optimizer, sampler=sampler)
"""
    train = TRAIN.replace("with step:", "with step:\n            step.next(sampler)")
    script = torshrun.script(BEGIN + body + train + "    print('end', rank)\n")
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=3", script)
    assert code == 0, err
    assert "with a batch_size that does not depend on the number of ranks" in err
    assert err.count("restarting") == 1, err
    assert sorted(re.findall(r"end (\d)", out)) == ["0", "1"]


def test_a_program_that_catches_it_is_restarted_after_other_failures(torshrun: Launcher) -> None:
    body = (
        BEGIN
        + """
    try:
        tr.elastic.join(model=model, optimizer=optimizer, number=3)
    except tr.ConfigError:
        print("goes on", rank, flush=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("something else")
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", torshrun.script(body))
    assert code == 0, err
    assert out.count("goes on") == 4


@pytest.mark.parametrize("victim", [0, 1])
def test_groups_are_made_again_after_a_training(torshrun: Launcher, victim: int) -> None:
    train = TRAIN.replace("rank == 1", f"rank == {victim}")
    again = """
    for turn in range(2):
        tr.destroy_process_group()
        tr.init_process_group()
        total = np.ones(1)
        tr.all_reduce(total)
        print("again", turn, rank, total[0], flush=True)
    """
    script = torshrun.script(BEGIN + JOIN + train + again)
    code, out, err = torshrun.run("--nproc-per-node=3", "--max-restarts=1", script, within=120)
    assert code == 0, err
    assert len(re.findall(r"again [01] [012] 3\.0", out)) == 6, out
    assert Path(torshrun.folder / "killed").exists()


def test_a_forked_child_commits_nothing_and_leaves_its_parent_alone(torshrun: Launcher) -> None:
    train = """
    child = 0
    for step in job.steps(6):
        with step:
            (model(nn.Tensor(np.ones((2, 4), np.float32))) ** 2).mean().backward()
            if step.number == 2 and rank == 1 and not child:
                child, forked = os.fork() or -1, time.monotonic()
            step.commit()
        if child < 0:
            print("the child goes on", flush=True)
    _, status = os.waitpid(child, 0) if child else (0, 0)
    print("end", rank, job.number, status, flush=True)
    if child:
        print("after", time.monotonic() - forked, flush=True)
    """
    script = torshrun.script(BEGIN + JOIN + train)
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert code == 0, err
    seconds = float(re.findall(r"after (.*)", out)[0])
    assert seconds < NOTICE, "it waited to hear from its parent's agent"
    assert sorted(re.findall(r"end .*", out)) == ["end 0 6 0", "end 1 6 256"]
    assert "the child goes on" not in out
    assert "this process is a fork of a rank and no rank itself" in err


def test_a_join_that_was_refused_keeps_no_model(torshrun: Launcher) -> None:
    body = (
        BEGIN
        + """
    import weakref
    kept = weakref.ref(model)
    try:
        tr.elastic.join(model=model, optimizer=optimizer, number=3)
    except tr.ConfigError:
        del model, optimizer
    import gc
    gc.collect()
    print("kept", kept() is not None, flush=True)
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", torshrun.script(body))
    assert code == 0, err
    assert out.count("kept False") == 2, out
