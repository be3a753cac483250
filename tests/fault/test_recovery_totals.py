"""Numbers of all steps that differ after the loss of a worker."""

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
