"""What the library deepspeed does: its schedules and scales beside ours, or a training's losses.

The first argument is "schedules", or a stage of ZeRO.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import deepspeed
import torch
from support.deepspeed_training import MICRO_STEPS, STEPS, batch, config, model

import torsh_runtime as tr

SCHEDULES: list[tuple[str, dict[str, Any]]] = [
    ("WarmupLR", {"warmup_min_lr": 0.01, "warmup_max_lr": 0.5, "warmup_num_steps": 7}),
    ("WarmupLR", {"warmup_num_steps": 5, "warmup_type": "linear"}),
    ("WarmupDecayLR", {"total_num_steps": 20, "warmup_num_steps": 7, "warmup_max_lr": 0.3}),
    ("WarmupDecayLR", {"total_num_steps": 9, "warmup_num_steps": 1, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"total_num_steps": 20, "warmup_num_steps": 6, "cos_min_ratio": 0.1}),
    ("WarmupCosineLR", {"total_num_steps": 5, "warmup_num_steps": 9, "warmup_min_ratio": 0.2}),
    ("LRRangeTest", {"lr_range_test_min_lr": 0.01, "lr_range_test_step_size": 4}),
    ("LRRangeTest", {"lr_range_test_step_size": 3, "lr_range_test_staircase": True}),
    ("OneCycle", {"cycle_min_lr": 0.1, "cycle_max_lr": 0.9, "cycle_first_step_size": 8}),
    (
        "OneCycle",
        {
            "cycle_min_lr": 0.1,
            "cycle_max_lr": 0.9,
            "cycle_first_step_size": 5,
            "cycle_second_step_size": 9,
            "cycle_first_stair_count": 2,
            "cycle_second_stair_count": 3,
            "decay_step_size": 4,
            "decay_lr_rate": 0.5,
            "decay_mom_rate": 0.1,
        },
    ),
]


def rates(make: Any) -> list[Any]:
    """What a schedule makes of an optimizer of two groups, over 30 steps."""
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": [weights[0]], "lr": 0.2}, {"params": [weights[1]], "lr": 0.4}]
    optimizer = torch.optim.AdamW(groups)
    schedule, found = make(optimizer), []
    for _ in range(30):
        found.append([(group["lr"], *group["betas"]) for group in optimizer.param_groups])
        schedule.step()
    return found


def compare_schedules() -> None:
    from deepspeed.runtime import lr_schedules

    from torsh_runtime.integrations.deepspeed.schedules import make_schedule

    for kind, params in SCHEDULES:
        theirs = rates(lambda made, k=kind, p=params: getattr(lr_schedules, k)(made, **p))
        own = rates(lambda made, k=kind, p=params: make_schedule(k, p, made))
        for step, (one, other) in enumerate(zip(own, theirs, strict=True)):
            torch.testing.assert_close(
                torch.tensor(one),
                torch.tensor(other),
                msg=lambda text, s=step, k=kind: f"{k} at step {s}: {text}",
            )
        print(f"{kind} is the same")


def compare_scales() -> None:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler

    from torsh_runtime.integrations.deepspeed.config import LossScale
    from torsh_runtime.integrations.deepspeed.scaling import LossScaler

    for refills in (True, False):
        named = {"init_scale": 2**10, "scale_window": 3, "min_scale": 4.0, "delayed_shift": 2}
        theirs = DynamicLossScaler(
            **named,
            consecutive_hysteresis=refills,
            raise_error_at_min_scale=False,
            dtype=torch.half,
        )
        rules = LossScale(0, 2.0**10, 3, 2, refills, 4.0)
        own = LossScaler(rules, tr.group.WORLD)
        for overflows in map(int, "0011010000110101000000010010111000"):
            theirs.update_scale(bool(overflows))
            own._is_finite[0] = not overflows
            own.update()
            assert own.get_scale() == theirs.cur_scale
    print("scales are the same")


def train(stage: int) -> None:
    import torch.distributed as dist

    deepspeed.init_distributed("gloo", verbose=False)
    given = config(zero_optimization={"stage": stage})
    given["optimizer"]["params"]["torch_adam"] = True  # its own has to be compiled
    engine, *_ = deepspeed.initialize(model=model(), config=given)
    size = engine.train_micro_batch_size_per_gpu()
    own, losses = slice(size * dist.get_rank(), size * (dist.get_rank() + 1)), []
    for step in range(STEPS):
        total = 0.0
        for micro in range(MICRO_STEPS):
            inputs, targets = batch(step, micro)
            loss = (engine(inputs[own]) - targets[own]).square().mean()
            engine.backward(loss)
            engine.step()
            total += loss.item() / MICRO_STEPS
        losses.append(total)
    mean = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(json.dumps((mean / dist.get_world_size()).tolist()))


if __name__ == "__main__":
    if sys.argv[1] == "schedules":
        tr.init_process_group()
        deepspeed.init_distributed("gloo", verbose=False)
        compare_schedules()
        compare_scales()
        tr.destroy_process_group()
    else:
        train(int(sys.argv[1]))
