"""Describes which parameters of sharded models are trained, and by which groups of optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torsh_runtime.errors import ConfigError

OUTLINE = "torsh: trained parameters and groups"
"""The name under which it is kept beside what all ranks have alike."""


class Outline:
    """Describes what a program can change in steps and a new process has as the script makes it."""

    def __init__(self, models: Mapping[str, Any], optimizers: Mapping[str, Any]) -> None:
        """Find the parameters."""
        self._models, self._optimizers = models, optimizers
        self._parameters = [each for model in models.values() for each in model.parameters()]
        self._known: list[int] = []
        self._told: dict[str, list[str]] = {}

    def described(self) -> dict[str, list[str]]:
        """Return a line for each parameter and for each group of parameters."""
        trained = [
            f"{name}/{key} is {'trained' if parameter.requires_grad else 'frozen'}"
            for name, model in self._models.items()
            for key, parameter in model.named_parameters()
        ]
        stepped = [
            f"{name} has {len(group['params'])} parameters in group {number}"
            for name, optimizer in self._optimizers.items()
            for number, group in enumerate(optimizer.param_groups)
        ]
        return {"models": trained, "optimizers": stepped}

    def present(self) -> dict[str, list[str]]:
        """Return the same, made anew only if something has changed."""
        groups = [group for each in self._optimizers.values() for group in each.param_groups]
        now = [*(len(each["params"]) for each in groups), len(groups)]
        now += [each.requires_grad for each in self._parameters]
        if now != self._known:
            self._known, self._told = now, self.described()
        return self._told

    def check(self, kept: Mapping[str, Any], advice: str) -> None:
        """Raise ConfigError, with this advice, unless this process has what was kept."""
        for kind, own in self.described().items():
            there = [str(each) for each in kept.get(kind, own)]
            if there == own:
                continue
            pairs = zip([*there, "nothing"], [*own, "nothing"], strict=False)
            first, here = next(pair for pair in pairs if pair[0] != pair[1])
            raise ConfigError(
                f"the state in memory is of other {kind}: there {first}, and here {here}. {advice}"
            )
