"""Tries out whether a module of experts can be spread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torsh_runtime.errors import ConfigError
from torsh_runtime.parallel.tensor.kinds import replaced

_TOKENS = 3
_WEIGHTS = (0.75, 0.5)


def number_of_experts(module: nn.Module, counts: Iterable[str]) -> int:
    """Return the number of experts, all of whose parameters a module has. Raises ConfigError if
    that is unknown."""
    own = {name: each for name, each in module._parameters.items() if each is not None}
    below = [name for name, _ in module.named_parameters() if "." in name]
    if below or not own:
        raise ConfigError(
            f"it has {f'{below[0]!r}' if below else 'no parameters'}, and experts that are spread "
            f"over ranks are one module, whose own parameters are those of all experts"
        )
    sizes = {each.shape[0] if each.dim() else 0 for each in own.values()}
    for name in counts:
        sizes.add(getattr(module, name, 0))
    if len(sizes) != 1 or 0 in sizes:
        told = [f"{name} of shape {tuple(each.shape)}" for name, each in own.items()]
        told += [f"{name} of {getattr(module, name, None)}" for name in counts]
        raise ConfigError(
            f"it has {', '.join(told)}, and the first dimension of all parameters of experts, and "
            f"what counts them, are their number: say Experts(counts=(…)) with names of attributes"
        )
    return sizes.pop()


def tried(module: nn.Module, counts: Sequence[str]) -> None:
    """Raise ConfigError for a module that does not return weighted sums of each expert's outputs
    for a token, or does not with one expert alone. It is tried with other numbers in place of
    its parameters, for two experts."""
    kept = {name: each for name, each in module._parameters.items() if each is not None}
    first = next(iter(kept.values()))
    device = "cpu" if first.is_meta else first.device
    own = {name: _numbers((2, *each.shape[1:]), each.dtype, device) for name, each in kept.items()}
    said = "other sums"
    for width in dict.fromkeys(size for each in own.values() for size in reversed(each.shape[1:])):
        tokens = _numbers((_TOKENS, width), first.dtype, device)
        try:
            with torch.no_grad(), torch.random.fork_rng([]):
                both = _called(module, own, counts, tokens, _WEIGHTS)
                alone = [
                    _called(module, {name: p[e : e + 1] for name, p in own.items()}, counts, tokens)
                    for e in range(2)
                ]
        except Exception as error:  # of whatever a stranger's code makes of another width
            said = f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        if _are_close(both, alone[0] * _WEIGHTS[0] + alone[1] * _WEIGHTS[1]):
            return
    raise ConfigError(
        f"the forward() of a {type(module).__name__} was tried with tokens, experts and weights, "
        f"and did not give weighted sums of what each expert makes of a token ({said}): leave it "
        f"out of the plan, or cut its parameters by Cut() within a Summed() module"
    )


def _numbers(shape: Sequence[int], dtype: torch.dtype, device: Any) -> Tensor:
    """Return numbers that are equal on all ranks, without a generator."""
    size = torch.Size(shape).numel()
    found = torch.arange(size, dtype=torch.float64).remainder_(9973).mul_(12.9898).sin_()
    return found.mul_(max(shape[-1], 1) ** -0.5).view(*shape).to(device, dtype)


def _called(
    module: nn.Module,
    parameters: Mapping[str, Tensor],
    counts: Sequence[str],
    tokens: Tensor,
    weights: Sequence[float] = (1.0,),
) -> Tensor:
    """Return its outputs for tokens that all go to all experts, with these parameters."""
    chosen = torch.arange(len(weights), device=tokens.device).expand(len(tokens), -1)
    told = tokens.new_tensor(weights).expand(len(tokens), -1)
    forward: Any = type(module).forward
    with replaced({module: parameters}), _counting(module, counts, len(weights)):
        found: Tensor = forward(module, tokens, chosen, told)
    if found.shape != tokens.shape:
        raise ValueError(f"a result of shape {tuple(found.shape)}")
    return found.double()


@contextmanager
def _counting(module: nn.Module, counts: Sequence[str], number: int) -> Iterator[None]:
    kept = {name: getattr(module, name) for name in counts}
    try:
        for name in counts:
            setattr(module, name, number)
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Return whether they are equal up to the rounding of the least precise dtypes that models
    have."""
    return bool((one - other).abs().max() <= 0.05 * other.abs().max())
