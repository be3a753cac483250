"""FullyShardedDataParallel in trouble; each function is one rank's part."""

from __future__ import annotations

from typing import Any

import torch
from support.ddp_faults import Two, raised
from support.fsdp_training import WAYS, without_common_memory

import torsh_runtime as tr

SMALL = {"auto_wrap_policy": tr.SizeBasedAutoWrap(5), "min_num_params": 0}
ONE = {"auto_wrap_policy": tr.NoAutoWrap(), "min_num_params": 0}


def wrapped(**options: Any) -> Any:
    torch.manual_seed(0)
    return tr.FullyShardedDataParallel(Two(), **options)


def gradients(model: Any) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters()]


def unused(way: str, rank: int) -> Any:
    """Rank 1 leaves one of two units out; their group is dead then."""
    with WAYS[way]():
        model = wrapped(**SMALL)
        return raised(lambda: model(torch.ones(2, 3), second=rank != 1).sum().backward())


def unused_in_a_unit(rank: int) -> Any:
    """Rank 1 leaves a part of the only unit out, where it is reduced as one; all goes on then."""
    with without_common_memory():
        model = wrapped(**ONE)
        text = raised(lambda: model(torch.ones(2, 3), second=rank != 1).sum().backward())
        model.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        return text, [each for each in gradients(model) if each.numel()]


def unused_by_all(way: str, rank: int) -> Any:
    """No rank uses a part: its parameters get no gradients, or keep those that they have."""
    with WAYS[way]():
        model = wrapped(**ONE)
        inputs = torch.full((2, 3), 1.0 + rank)
        model(inputs, second=False).sum().backward()
        found = [p.grad is None for p in model.parameters()]
        model(inputs).sum().backward()
        first, second = model.module.first, model.module.second
        before = second.weight.grad.clone()
        first.zero_grad()
        model(inputs, second=False).sum().backward()
        torch.testing.assert_close(second.weight.grad, before)
        once = first.weight.grad.clone()
        first.zero_grad()
        model(inputs, second=False).sum().backward()
        torch.testing.assert_close(first.weight.grad, once)
        return found


def not_finite(rank: int) -> Any:
    model = wrapped(**SMALL, check_nan=True)
    inputs = torch.full((2, 3), float("nan") if rank == 1 else 1.0)
    text = raised(lambda: model(inputs).sum().backward())
    model.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    return text


def twice(way: str, rank: int) -> Any:
    """A graph is gone after its backward pass, on all ranks; one that was kept serves again."""
    with WAYS[way]():
        model = wrapped(**SMALL)
        loss = model(torch.full((2, 3), 1.0 + rank)).sum()
        loss.backward(retain_graph=True)
        once = gradients(model)
        loss.backward()
        for first, second in zip(once, gradients(model), strict=True):
            torch.testing.assert_close(second, 2 * first)
        return raised(loss.backward)


def broken_off(way: str, rank: int) -> Any:
    """All ranks break a pass off in its midst; the next one is as if that had not been."""

    def fail(_: Any) -> None:
        raise ValueError("no")

    def hook_on_outputs(_: Any, __: Any, outputs: Any) -> None:
        outputs.register_hook(fail)

    with WAYS[way]():
        model = wrapped(**SMALL)
        inputs = torch.full((2, 3), 1.0 + rank)
        model(inputs).sum().backward()
        expected = gradients(model)
        model.zero_grad()
        hidden = model.module.first.register_forward_hook(hook_on_outputs)
        text = raised(lambda: model(inputs).sum().backward())
        hidden.remove()
        model.zero_grad()
        model(inputs).sum().backward()
        for first, second in zip(expected, gradients(model), strict=True):
            torch.testing.assert_close(first, second)
        return text


def one_rank_leaves(rank: int) -> Any:
    """A rank with fewer batches."""
    model = wrapped(**SMALL)

    def step() -> None:
        model(torch.ones(2, 3)).sum().backward()

    step()
    return raised(step) if rank == 0 else None


def one_rank_skips(rank: int) -> Any:
    """Rank 1 has one batch less and goes on to what comes after the loop."""
    model = wrapped(**SMALL)

    def steps() -> None:
        for _ in range(2 - rank):
            model(torch.ones(2, 3)).sum().backward()
        model.clip_grad_norm_(1.0)

    return raised(steps)


def refused(rank: int) -> list[str]:
    """What options say that make no sense."""
    calls = (
        lambda: tr.MemoryConfig(use_orig_params=False),
        lambda: tr.MixedPrecision(param_dtype=torch.int32),
        lambda: tr.FsdpConfig(mixed_precision=torch.bfloat16),  # type: ignore[arg-type]
        lambda: tr.FsdpConfig(param_init_fn="no"),  # type: ignore[arg-type]
        lambda: wrapped(mixed_precision=tr.MixedPrecision("float32" if rank else "float16")),
        lambda: wrapped(activation_checkpointing=bool(rank)),
        lambda: tr.FullyShardedDataParallel(wrapped()),
        lambda: wrapped(mixed_precision=tr.MixedPrecision("float31")),
    )
    return [raised(call) for call in calls]


class Counted(torch.nn.Linear):
    """Counts its calls."""

    calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(inputs)


def computed_again(rank: int) -> list[int]:
    """How often forward() of the model's layers was called in a step."""
    layers = [Counted(4, 4), torch.nn.Sequential(Counted(4, 4), Counted(4, 4))]
    model: Any = torch.nn.Sequential(*layers)
    options = {**SMALL, "auto_wrap_policy": tr.CustomAutoWrap(lambda m: m is layers[1])}
    model = tr.FullyShardedDataParallel(model, activation_checkpointing=True, **options)
    model(torch.ones(2, 4)).sum().backward()
    return [each.calls for each in model.modules() if isinstance(each, Counted)]


def one_rank_saves(others: str, rank: int) -> str:
    """Return the error, with its notes, if rank 0 alone calls state_dict()."""
    model: Any = tr.FullyShardedDataParallel(Two(), **ONE)
    state = model.state_dict()
    calls: dict[str, Any] = {
        "train": lambda: model(torch.ones(3, 8)).sum().backward(),
        "reduce": lambda: tr.all_reduce(torch.ones(5)),
        "end": lambda: None,
        "load": lambda: model.load_state_dict(state),
    }
    try:
        model.state_dict() if rank == 0 else calls[others]()
    except tr.TorshError as error:
        return "\n".join([str(error), *getattr(error, "__notes__", ())])
    return ""


def other_ranks(rank: int) -> str:
    """A part that is sharded over other ranks than the whole."""
    own = tr.new_group([0]), tr.new_group([1])
    model = Two()
    model.first = tr.FullyShardedDataParallel(model.first, process_group=own[rank])
    return raised(lambda: tr.FullyShardedDataParallel(model))


def tied_across(rank: int) -> str:
    """A weight of a part that is sharded already, which a layer outside of that has, too."""
    model = Two()
    model.second.weight = model.first.weight
    model.first = tr.FullyShardedDataParallel(model.first)
    return raised(lambda: tr.FullyShardedDataParallel(model))


def nested_facts(rank: int) -> Any:
    """Names, a clipped norm and a state that is loaded, of wrappers in one another."""
    torch.manual_seed(rank)
    model: Any = Two()
    inner: Any = tr.FullyShardedDataParallel(model.first, **ONE)
    model.first = inner
    model = tr.FullyShardedDataParallel(model, **ONE)
    plain = Two()
    torch.manual_seed(5)
    plain.load_state_dict({k: torch.randn(v.shape) for k, v in model.state_dict().items()})
    model.load_state_dict(plain.state_dict())
    model(torch.ones(2, 3)).sum().backward()
    plain(torch.ones(2, 3)).sum().backward()
    norm = float(torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0))
    return {
        "state": all(torch.equal(v, plain.state_dict()[k]) for k, v in model.state_dict().items()),
        "pieces": list(model.sharded_state_dict()),
        "norm": abs(model.clip_grad_norm_(1.0) / norm - 1) < 1e-5,
        "ratio": model.local_sharding_ratio(),
        "alone": tuple(inner(torch.ones(2, 3)).shape),
        "whole": model.memory_stats().parameters + model.memory_stats().saved,
    }


def summoned(rank: int) -> Any:
    """Called where its parameters are whole, and asked for its state there; then it goes on."""
    model = wrapped(**SMALL)
    with model.summon_full_params():
        text = raised(lambda: model(torch.ones(2, 3)))
        names = sorted(model.state_dict())
        first = next(iter(model.module.parameters()))
        with torch.no_grad():
            first.fill_(1.0)
    model(torch.ones(2, 3)).sum().backward()
    with model.summon_full_params(writeback=False):
        after = float(next(iter(model.module.parameters())).mean())
    return text, names, after
