"""Numbers of all steps, and options of optimizers, that differ after the loss of a worker."""

from __future__ import annotations

import pytest
from support.launcher import Launcher

PROGRAM = """
    import torsh_runtime as tr
    from torsh_runtime import nn, optim
    tr.init_process_group()
    tr.barrier()
    model = nn.Linear(2, 1)
    nn.init.zeros_(model.weight); nn.init.zeros_(model.bias)
    job = tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=0.1))
    total = int(sys.argv[1]) if "TORSH_REPLACEMENT" in os.environ else 9
    for step in job.steps(total):
        with step:
            if (step.number, rank, job.number) == (5, 1, 5) and total == 9:
                os.kill(os.getpid(), 9)
            step.commit()
    """


@pytest.mark.parametrize(
    ("total", "words"),
    [
        ("8", "ranks were given other numbers of steps: 9, 8, by rank"),
        ("4", "rank 1: steps() was called for 4 steps, and 5 are committed already"),
    ],
)
def test_another_total_in_a_replacement_is_named(
    torshrun: Launcher, total: str, words: str
) -> None:
    script = torshrun.script(PROGRAM)
    code, _, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script, total)
    assert code == 79, err
    assert "replaced while the others continue" in err
    assert words in err
    assert "take len(sampler), not len() of a loader" in err


OWN_RATES = """
    import numpy as np
    import torsh_runtime as tr
    from torsh_runtime import nn, optim
    tr.init_process_group()
    model = tr.DistributedDataParallel(nn.Linear(2, 1, bias=False))
    nn.init.zeros_(model.module.weight)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    ranks = 2 if "TORSH_REPLACEMENT" in os.environ else 1
    def schedule(step):
        return 0.1 if step < 6 else 0.1 * ranks
    chosen = optim.LambdaLR(optimizer, schedule) if sys.argv[1] == "schedule" else None
    job = tr.elastic.join(model=model, optimizer=optimizer, **{"chosen": chosen} if chosen else {})
    for step in job.steps(12):
        with step:
            (model(nn.Tensor(np.ones((2, 2), np.float32))) - 1.0).mean().backward()
            if sys.argv[1] == "block":
                optimizer.param_groups[0]["lr"] = schedule(step.number)
            if (step.number, rank, ranks) == (3, 1, 1):
                os.kill(os.getpid(), 9)
            step.commit()
            if chosen:
                chosen.step()
            print("committed", step.number, flush=True)
    """


@pytest.mark.parametrize("where", ["block", "schedule"])
def test_other_learning_rates_in_a_replacement_are_named_before_they_are_used(
    torshrun: Launcher, where: str
) -> None:
    """It has learned another number of ranks than the others when it has started."""
    script = torshrun.script(OWN_RATES)
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script, where)
    assert code == 79, err
    assert "replaced while the others continue" in err
    assert "or other options of optimizers, such as a learning rate" in err
    assert out.count("committed 5") == 2
    assert "committed 6" not in out
