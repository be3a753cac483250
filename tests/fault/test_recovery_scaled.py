"""Trainings with torch's GradScaler that lose workers: the same losses and scales."""

from __future__ import annotations

import re

import pytest
from support.launcher import Launcher

pytest.importorskip("torch")

SCRIPT = """
    import os, signal, sys
    import torch
    import torsh_runtime as tr

    def point(where):
        number, plans = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), sys.argv[1:]
        if number < len(plans) and plans[number] == f"{where}:{step.number}:{rank}":
            os.kill(os.getpid(), signal.SIGKILL)

    tr.init_process_group()
    torch.manual_seed(0)
    model = tr.DistributedDataParallel(torch.nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
    data = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))
    sampler = tr.elastic.ElasticSampler(data, batch_size=12)
    job = tr.elastic.join(model=model, optimizer=optimizer, scaler=scaler, sampler=sampler)
    rank = job.rank
    print("start", rank, os.getpid())
    optimizer.register_step_pre_hook(lambda *_: point("half"))
    for step in job.steps(16):
        with step:
            loss = 3 * (model(data[step.next(sampler)]) - 2).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            point("unscaled")
            step.commit()
            print("step", step.number, rank, loss.item(), scaler.get_scale(), flush=True)
            point("committed")
    print("end", rank, [each.tolist() for each in model.parameters()], scaler.state_dict())
    """


def test_scales_and_steps_are_those_of_an_undisturbed_run(torshrun: Launcher) -> None:
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")
    launch = ("--nproc-per-node=2", "--max-restarts=5", torshrun.script(SCRIPT))
    code, out, err = torshrun.run(*launch, within=200)
    assert code == 0, err
    expected = {kind: set(re.findall(rf"{kind} .+", out)) for kind in ("step", "end")}
    scales = {float(each.split()[-1]) for each in expected["step"]}
    assert len(scales) > 2, "it has been neither lowered nor raised"
    losses = ["unscaled:2:1", "half:5:0", "committed:7:1", "unscaled:9:0"]
    code, out, err = torshrun.run(*launch, *losses, within=200)
    assert code == 0, err
    assert set(re.findall("step .+", out)) <= expected["step"], out
    assert set(re.findall("end .+", out)) == expected["end"], out
    assert len(re.findall("start .+", out)) == 2 + len(losses), out


def test_a_scaler_is_refused_with_sharded_models(torshrun: Launcher) -> None:
    torshrun.environ["TORCHINDUCTOR_CACHE_DIR"] = str(torshrun.folder / "inductor")
    script = torshrun.script(
        """
    import torch
    import torsh_runtime as tr
    tr.init_process_group()
    model = tr.fully_shard(torch.nn.Linear(60, 60))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    try:
        tr.elastic.join(model=model, optimizer=optimizer, scaler=scaler)
    except tr.ConfigError as error:
        print(error)
    """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", "--max-restarts=1", script, within=100)
    assert code == 0, err
    assert out.count("'scaler': ranks have other gradients of sharded models") == 2, out
