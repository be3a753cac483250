"""What was asked for, before it means anything: texts, each with the place that it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torsh_runtime.errors import ConfigError
from torshrun.config.options import BY_KEY, OPTIONS

COMMAND_LINE = "command line"
DEFAULT = "default"
TARGETS: Mapping[str, str] = MappingProxyType(
    {"script": "", "module": "module", "program": "no_python"}
)
"""The keys that say what to run, and the flag that each one stands for."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One text and where it came from."""

    text: str | None
    """As it would stand on the command line; None is what holds when nothing is given."""
    origin: str
    """ "command line", "job.yaml:7", "PET_NNODES" or "default"."""
    name: str
    """What an error or a note calls it: "--nnodes", "job.yaml:7: nnodes", "PET_NNODES"."""

    @property
    def given(self) -> bool:
        """Whether anybody gave it."""
        return self.origin != DEFAULT and self.text is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """What the file of --config says."""

    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    """By option; those that the file does not mention are missing."""
    target: Setting | None = None
    """The script, module or program."""
    target_key: str = "script"
    """The key that named it."""
    arguments: tuple[Setting, ...] = ()
    """What follows the target."""
    environment: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    """Extra variables for workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that was asked for; complete, but nothing is checked yet."""

    by_key: Mapping[str, Setting]
    """One for each option."""
    target: Setting | None
    """The script, module or program; None if none was named."""
    arguments: tuple[Setting, ...] = ()
    """What follows the target."""
    environment: Mapping[str, Setting]
    """Extra variables for workers."""

    def __getitem__(self, key: str) -> Setting:
        return self.by_key[key]

    def value(self, key: str) -> Any:
        """What the option's text means; None if it has neither text nor default. Raises
        ConfigError naming where the text came from.
        """
        setting = self.by_key[key]
        if setting.text is None:
            return None
        try:
            return BY_KEY[key].parse(setting.text)
        except ConfigError as error:
            raise ConfigError(f"{setting.name}: {error}") from None

    def values(self) -> dict[str, Any]:
        """Every option's value. Raises ConfigError for the first that has none."""
        return {option.key: self.value(option.key) for option in OPTIONS}
