"""What join() and its steps refuse, with the rank and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.launcher import Launcher

import torsh_runtime as tr
from torsh_runtime import nn, optim
from torsh_runtime.checkpoint.ranks import Ranks
from torsh_runtime.elastic import joining
from torsh_runtime.elastic.hashes import Checks
from torsh_runtime.elastic.healing import hold
from torsh_runtime.elastic.parts_of_job import Parts


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A training of this process alone, without torshrun."""
    monkeypatch.setattr(joining, "_joined", False)
    model = nn.Linear(2, 1)
    sampler = tr.elastic.ElasticSampler(8, 2, num_replicas=1, rank=0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    return tr.elastic.join(model=model, optimizer=optimizer, sampler=sampler), sampler


def test_steps_of_a_process_without_torshrun(alone: Any) -> None:
    job, sampler = alone
    taken, drawn = [], []
    for step in job.steps(5):
        with step:
            taken += step.next(sampler)
            drawn.append(np.random.random())
            step.commit()
    assert sorted(taken[:8]) == [*range(8)]  # the next epoch begins after four
    assert len({*drawn}) == 5
    assert job.number == 5


def test_what_a_step_refuses(alone: Any) -> None:
    job, _ = alone
    steps = job.steps(9)
    step = next(steps)
    with pytest.raises(tr.ConfigError, match=r"rank 0: commit.* of step 0 .*before its block"):
        step.commit()
    with step:
        step.commit()
        with pytest.raises(tr.ConfigError, match=r"rank 0: commit.* of step 0 .*once"):
            step.commit()
    with pytest.raises(tr.ConfigError, match="behind its block"):
        step.commit()
    with pytest.raises(tr.ConfigError, match="was entered before"), step:
        pass
    with pytest.raises(tr.ConfigError, match=r"step 1 ended without commit\(\).*CommError"):  # noqa: SIM117
        with next(steps):
            pass
    with pytest.raises(ZeroDivisionError), next(steps):
        raise ZeroDivisionError
    next(steps)
    with pytest.raises(tr.ConfigError, match="step 1 was not entered: write `with step:`"):
        next(steps)


def test_an_optimizer_that_the_program_calls_within_a_step(alone: Any) -> None:
    job, _ = alone
    (optimizer,) = job._parts._optimizers
    steps = job.steps(2)
    with (
        pytest.raises(tr.ConfigError, match=r"SGD.step\(\) .*step.commit\(\) calls it"),
        next(steps),
    ):
        optimizer.step()
    steps.close()
    optimizer.step()  # the program's own again


def test_steps_are_taken_once(alone: Any) -> None:
    job, _ = alone
    for step in job.steps(1):
        with step:
            step.commit()
    with pytest.raises(tr.ConfigError, match=r"steps\(\) was called before"):
        next(job.steps(2))


def test_a_job_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(tr.ConfigError, match=r"call tr.init_process_group\(\) before"):
        tr.elastic.join(optimizer=optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))


def test_scalers_that_cannot_be_recovered_are_refused() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(1, 1)
    parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    with pytest.raises(tr.ConfigError, match=r"'scaler': it communicates in step\(\)"):
        Parts({**parts, "scaler": tr.ShardedGradScaler(enabled=False)}, None)
    scalers = {name: torch.amp.GradScaler("cpu") for name in ("first", "second")}
    with pytest.raises(tr.ConfigError, match="given several GradScalers"):
        Parts({**parts, **scalers}, None)
    unscaled = Parts({**parts, "scaler": scalers["first"]}, None)
    with pytest.raises(tr.ConfigError, match="no loss was scaled"):
        unscaled.prepare_commit(0)


def test_sparse_state_of_an_optimizer_is_named() -> None:
    torch = pytest.importorskip("torch")
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    checks = Checks(Parts({"table": table, "optimizer": optimizer}, None), 1, "heal")
    table(torch.tensor([1])).sum().backward()
    optimizer.step()
    said = "optimizer/state/weight/momentum_buffer is a sparse tensor"
    with pytest.raises(tr.ConfigError, match=said):
        checks.compute()
    held = hold({"table": table, "optimizer": optimizer}, Ranks(None))
    assert said in str(held.problem)


def test_an_error_of_another_origin_leaves_the_step(alone: Any) -> None:
    job, _ = alone
    with pytest.raises(tr.PeerLost), next(job.steps(1)):
        raise tr.PeerLost(1, "barrier", 1)  # nobody replaces workers here


def test_a_loader_without_a_place_to_go_back_to(alone: Any) -> None:
    job, _ = alone
    with pytest.raises(tr.ConfigError, match="ElasticSampler"), next(job.steps(1)) as step:
        step.next([1, 2, 3])


def test_it_is_joined_once(alone: Any) -> None:
    with pytest.raises(tr.ConfigError, match=r"join\(\) was called before"):
        tr.elastic.join(optimizer=optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))


def test_parts_that_cannot_be_recovered() -> None:
    model = nn.Linear(2, 1)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for part, said in [
        (3, "'part': int has no state_dict"),
        (tr.checkpoint.PerRank(optimizer), "'part': what only one rank has"),
    ]:
        with pytest.raises(tr.ConfigError, match=said):
            tr.elastic.join(model=model, optimizer=optimizer, part=part)
    with pytest.raises(tr.ConfigError, match="an optimizer under two names"):
        tr.elastic.join(model=model, optimizer=optimizer, same=optimizer)
    with pytest.raises(tr.ConfigError, match="needs an optimizer="):
        tr.elastic.join(model=model)


def test_states_that_differ_are_named(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        nn.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        if rank == 1:
            model[1].bias.data[...] = 7
        try:
            tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=1.0))
        except tr.ConfigError as error:
            print(error)
        """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", script)
    assert code == 0, err
    assert out.count("the state at elastic.join() differs between ranks: model/1.bias (che") == 2
    assert "on rank(s) 1" in out
    assert "the same seed" in out


def test_groups_that_were_made_before_are_refused(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        tr.new_group([0, 1])
        model = nn.Linear(2, 2)
        try:
            tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=1.0))
        except tr.ConfigError as error:
            print(error)
        """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", script)
    assert code == 0, err
    assert out.count("groups were made of the default group") == 2


SHARDED = """
    import torch
    import torsh_runtime as tr
    class Odd(torch.optim.SGD):
        pass
    tr.init_process_group()
    def parts(optimizer=torch.optim.SGD, **options):
        model = tr.FullyShardedDataParallel(torch.nn.Linear(8, 8), min_num_params=1, **options)
        return model, optimizer(model.parameters(), lr=1.0)
    for model, optimizer in (
        parts(process_group=tr.new_group([0, 1])),
        parts(
            sharding_strategy="hybrid",
            process_group=(tr.new_group([0, 1]), tr.new_group([tr.get_rank()])),
        ),
        parts(cpu_offload=True),
        parts(Odd),
    ):
        try:
            tr.elastic.join(model=model, optimizer=optimizer)
        except tr.ConfigError as error:
            print(error, flush=True)
        del model, optimizer
    kept, optimizer = parts()
    model, optimizer = parts()
    try:
        tr.elastic.join(model=model, optimizer=optimizer)
    except tr.ConfigError as error:
        print(error, flush=True)
    """


def test_what_is_sharded_otherwise_is_refused_by_name(torshrun: Launcher) -> None:
    torshrun.share_torch()
    code, out, err = torshrun.run("--nproc-per-node=2", torshrun.script(SHARDED))
    assert code == 0, err
    for part, problem in (
        ("model", "it is not sharded over the default group"),
        ("model", 'its sharding_strategy is "hybrid"'),
        ("model", "it is offloaded to the memory of the CPU"),
        ("optimizer", "Odd is none of torch's optimizers that compute elementwise"),
    ):
        assert out.count(f"cannot recover {part!r}: {problem}") == 2, out
    assert out.count("join() was not given a Linear that is sharded") == 2, out


def test_ranks_that_do_not_join_are_named(torshrun: Launcher) -> None:
    script = torshrun.script(
        """
        import torsh_runtime as tr
        from torsh_runtime import nn, optim
        tr.init_process_group()
        nn.manual_seed(1)
        model = nn.Linear(2, 2)
        try:
            if rank == 0:
                tr.elastic.join(model=model, optimizer=optim.SGD(model.parameters(), lr=1.0))
            else:
                tr.barrier()
        except tr.TorshError as error:
            print(type(error).__name__, error)
        """
    )
    code, out, err = torshrun.run("--nproc-per-node=2", script)
    assert code == 0, err
    assert out.count("CommMismatch ranks disagree") == 2


def test_replicas_whose_values_a_replacement_would_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_joined", False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    tr.init_process_group()
    try:
        model, other = (tr.DistributedDataParallel(nn.Linear(2, 1)) for _ in range(2))
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(tr.ConfigError, match="not given the DistributedDataParallel of a Line"):
            tr.elastic.join(model=model, optimizer=optimizer)
        assert tr.elastic.join(model=model, other=other, optimizer=optimizer).number == 0
    finally:
        tr.destroy_process_group()
