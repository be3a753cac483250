"""Trainings by DeepSpeed configurations, beside one process with torch alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

import torsh_runtime as tr
import torsh_runtime.integrations.deepspeed as deepspeed
from torsh_runtime.errors import TorshError

ROWS, MICRO_STEPS, STEPS = 8, 2, 6


def batch(step: int, micro: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What all ranks together train on."""
    generator = torch.Generator().manual_seed(10 * step + micro)
    inputs = torch.randn(ROWS, 20, generator=generator)
    return inputs, inputs.sum(1, keepdim=True).sin()


def model() -> torch.nn.Module:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(20, 60), torch.nn.ReLU(), torch.nn.Linear(60, 60), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(60, 1))


def config(**more: Any) -> dict[str, Any]:
    return {
        "train_batch_size": ROWS * MICRO_STEPS,
        "gradient_accumulation_steps": MICRO_STEPS,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_max_lr": 0.01, "warmup_num_steps": 4, "warmup_type": "linear"},
        },
        **more,
    }


def steps(engine: Any, numbers: range) -> list[float]:
    """The losses of steps, of all ranks."""
    losses, size = [], engine.train_micro_batch_size_per_gpu()
    own = slice(size * tr.get_rank(), size * (tr.get_rank() + 1))
    for step in numbers:
        total = 0.0
        for micro in range(MICRO_STEPS):
            inputs, targets = batch(step, micro)
            loss = (engine(inputs[own]).float() - targets[own]).square().mean()
            if micro:
                engine.backward(loss)
            else:
                engine.scale(loss).backward()
            engine.step()
            total += loss.item() / MICRO_STEPS
        losses.append(total)
    mean = torch.tensor(losses, dtype=torch.float64)
    tr.all_reduce(mean)
    found: list[float] = (mean / tr.get_world_size()).tolist()
    return found


def trained(more: dict[str, Any], rank: int) -> list[float]:
    engine, _, _, _ = deepspeed.initialize(model(), config(**more))
    losses = steps(engine, range(STEPS))
    assert engine.global_steps + engine.skipped_steps == STEPS
    assert engine.global_samples == STEPS * ROWS * MICRO_STEPS
    return losses


def of_one_process(rank: int) -> list[float]:
    """As `trained`, with torch alone."""
    torch.set_num_threads(1)  # ranks share processors
    whole, losses = model(), []
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(STEPS):
        warm = min(max(step - 1, 0) / 4, 1.0)  # the first step has the smallest rate, as the second
        total = torch.zeros(())
        for micro in range(MICRO_STEPS):
            inputs, targets = batch(step, micro)
            loss = (whole(inputs) - targets).square().mean() / MICRO_STEPS
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = 0.01 * warm
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total.item())
    return losses


def saved_by_each_stage(folder: Path, rank: int) -> None:
    """Half a training of each stage is saved."""
    for name, more in AT_OTHER_SIZES.items():
        engine = deepspeed.initialize(model(), config(**more))
        steps(engine, range(3))
        engine.save_checkpoint(folder / name, client_state={"from": tr.get_world_size()})


def continued_at_other_size(folder: Path, rank: int) -> dict[str, Any]:
    """The rest of those trainings."""
    found: dict[str, Any] = {}
    for name, more in AT_OTHER_SIZES.items():
        engine = deepspeed.initialize(model(), config(**more))
        path, client_state = engine.load_checkpoint(folder / name)
        assert path is not None
        found[name] = client_state["from"], engine.loss_scale(), steps(engine, range(3, STEPS))
    return found


AT_OTHER_SIZES: dict[str, dict[str, Any]] = {
    f"stage {stage}": {"zero_optimization": {"stage": stage}} for stage in range(4)
}
AT_OTHER_SIZES["stage 2, fp16"] = {
    "fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2},
    "zero_optimization": {"stage": 2},
}


def resumed(folder: Path, rank: int) -> dict[str, Any]:
    """Stage 3 is saved, and goes on as stage 1 and 0."""
    first, _, _, _ = deepspeed.initialize(model(), config(zero_optimization={"stage": 3}))
    before = steps(first, range(4))
    where = folder / "checkpoints"
    assert first.load_checkpoint(where) == (None, {})
    first.save_checkpoint(where, client_state={"epoch": 2})
    first.save_checkpoint(where, tag="named", save_latest=False)
    found: dict[str, Any] = {"whole": before + steps(first, range(4, STEPS))}
    for stage in (0, 1, 3):
        engine = deepspeed.initialize(model(), config(zero_optimization={"stage": stage}))
        path, client_state = engine.load_checkpoint(where)
        assert (path, client_state) == (str(where / "global_step4"), {"epoch": 2})
        assert (engine.global_steps, engine.micro_steps) == (4, 8)
        assert engine.get_lr() == [0.01 * 3 / 4]
        found[f"stage {stage}"] = before + steps(engine, range(4, STEPS))
    engine = deepspeed.initialize(model(), config())
    path, _ = engine.load_checkpoint(where, "named", load_module_only=True)
    assert (path, engine.global_steps) == (str(where / "named"), 0)
    found["missing"] = refused(lambda: engine.load_checkpoint(where, "none"))
    tag = f"of rank {rank}"
    engine.save_checkpoint(where, "same")
    found["elsewhere"] = refused(lambda: engine.save_checkpoint(where, "../a"))
    strict = config(checkpoint={"tag_validation": "Fail"})
    other = deepspeed.initialize(model(), strict)
    found["tags"] = refused(lambda: other.save_checkpoint(where, tag))
    other.save_16bit_model(folder, "weights.bin")
    if rank == 0:
        model().load_state_dict(torch.load(folder / "weights.bin"))
    return found


def overflown(rank: int) -> tuple[list[float], list[int]]:
    """Scales and skipped steps where one rank has an infinite gradient in steps 1 and 2."""
    fp16 = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 2}
    engine = deepspeed.initialize(
        model(), config(fp16=fp16, gradient_accumulation_steps=1, train_batch_size=ROWS)
    )
    scales, skipped = [], []
    for step in range(6):
        loss = engine(batch(step, 0)[0]).float().mean()
        engine.backward(loss * (math.inf if step in (1, 2) and rank == 1 else 1.0))
        engine.step()
        scales.append(engine.loss_scale())
        skipped.append(engine.skipped_steps)
    return scales, skipped


def with_own_parts(rank: int) -> dict[str, Any]:
    """The program's own optimizer, schedule, loader, parameters and calls of the model."""
    found: dict[str, Any] = {}
    params = {"total_num_steps": 9, "warmup_num_steps": 2, "warmup_max_lr": "auto"}
    decaying = {"type": "WarmupDecayLR", "params": {**params, "warmup_type": "linear"}}
    engine = deepspeed.initialize(model(), config(scheduler=decaying))
    steps(engine, range(3))
    assert engine.get_lr() == [0.01]
    for name, stage in (("ddp", 0), ("fsdp", 2)):
        whole = model()
        groups = [{"params": [*whole.parameters()][:2], "lr": 0.0}, {"params": [whole[2].weight]}]
        first = whole[0].weight.detach().clone()
        engine, optimizer, loader, schedule = deepspeed.initialize(
            args=None,
            model=whole,
            optimizer=torch.optim.SGD(groups, lr=0.5),
            lr_scheduler=lambda made: torch.optim.lr_scheduler.StepLR(made, 1, 0.5),
            training_data=[(batch(0, 0)[0][row], row) for row in range(ROWS)],
            config={
                "train_micro_batch_size_per_gpu": 2,
                "zero_optimization": {"stage": stage},
                "activation_checkpointing": {"partition_activations": True} if stage else {},
            },
        )
        rows = []
        for inputs, numbers in loader:
            engine.backward(whole(inputs).sum())  # not by the engine
            engine.step()
            rows += numbers.tolist()
        assert engine.get_lr() == [0.0, 0.5 * 0.5 ** len(loader)]
        assert optimizer.param_groups[1]["lr"] == schedule.get_last_lr()[1]
        state = engine.state_dict()
        assert torch.equal(state["0.weight"], first)
        found[name] = rows, {name: value.tolist() for name, value in state.items()}
    return found


def refusals(folder: Path, rank: int) -> dict[str, str]:
    """What each rank says to configurations and arguments that cannot be."""
    broken = folder / f"config of {rank}.json"
    broken.write_text(json.dumps(config()) if rank == 0 else "{")
    stepped = model()
    spent = torch.optim.Adam(stepped.parameters())
    stepped(batch(0, 0)[0]).sum().backward()
    spent.step()
    cases: dict[str, Any] = {
        "broken on one rank": {"config": broken},
        "different": {"config": config(steps_per_print=10 + rank)},
        "none": {"config": None},
        "sizes": {"config": {"train_batch_size": 3}},
        "argument": {"config": config(optimizer={"type": "AdamW", "params": {"learning_rate": 1}})},
        "optimizer": {"config": config(optimizer={"type": "Adamm", "params": {}})},
        "schedule": {"config": config(scheduler={"type": "Warmup", "params": {}})},
        "total": {"config": config(scheduler={"type": "WarmupDecayLR", "params": {}})},
        "alone": {"config": {"train_batch_size": 2, "scheduler": {"type": "WarmupLR"}}},
        "mpu": {"config": config(), "mpu": object()},
        "two": {"config": config(), "config_params": config()},
        "foreign": {"config": config(), "optimizer": torch.optim.SGD(model().parameters(), 1.0)},
        "spent": {"config": config(), "model": stepped, "optimizer": spent},
        "model": {"config": config(), "model": len},
        "auto": {"config": deepspeed.DeepSpeedConfig(config()), "auto": {"fp16.enabled": True}},
    }
    found = {
        name: refused(lambda named=named: deepspeed.initialize(**{"model": model(), **named}))
        for name, named in cases.items()
    }
    of_whole = {"optimizer": {"type": "Adafactor"}, "zero_optimization": {"stage": 3}}
    found["whole"] = refused(
        lambda: steps(deepspeed.initialize(model(), config(**of_whole)), range(1))
    )
    plain = deepspeed.initialize(model(), config())
    plain(batch(0, 0)[0]).sum().backward()
    found["unscaled"] = refused(plain.step)
    found["absent"] = refused(lambda: deepspeed.PipelineModule)
    idle = deepspeed.initialize(model(), {"train_batch_size": 2})
    found["step"] = refused(idle.step)
    found["loss"] = refused(lambda: idle.backward(torch.ones(2)))
    return found


def refused(call: Any) -> str:
    try:
        call()
    except (AttributeError, TorshError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"
