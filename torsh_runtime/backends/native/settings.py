"""Reads the settings of native groups from the environment and the tuning file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from torsh_runtime.backends.base import CommunicationStrategy
from torsh_runtime.backends.native import arrays
from torsh_runtime.backends.native.compiled import _native
from torsh_runtime.backends.native.host_info import Terms
from torsh_runtime.backends.native.network import Network
from torsh_runtime.backends.native.node_file import NodeFile
from torsh_runtime.backends.native.tuning import TuningFile
from torsh_runtime.errors import ConfigError

HEARTBEAT_VARIABLE = "TORSH_HEARTBEAT"
_DEFAULT_HEARTBEAT = 10.0
STRATEGY_VARIABLE = "TORSH_ALGORITHM"
STRATEGIES = tuple(map(str, CommunicationStrategy))
"""The first is the default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Holds all settings, checked as far as that is possible before the ranks have connected."""

    network: Network
    heartbeat: float
    """Seconds after which a silent node counts as lost."""
    strategy: str
    """The algorithms that groups of several nodes use: one of STRATEGIES."""
    tuning: TuningFile
    share_arrays: bool
    """True if large numpy arrays are to be placed in memory that a node's ranks have mapped."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Self:
        """Read the settings.

        Raises ConfigError naming the variable, or the tuning file and the fault in it.
        """
        return cls(
            network=Network.from_environ(environ),
            heartbeat=_heartbeat(environ),
            strategy=_strategy(environ),
            tuning=TuningFile.read(environ),
            share_arrays=arrays.is_wanted(environ),
        )

    def with_strategy(self, strategy: str | None) -> Settings:
        """Return the same settings with this one of STRATEGIES, if it is given."""
        return self if strategy is None else replace(self, strategy=strategy)

    def node_file(self, ranks: int) -> NodeFile:
        """Return the layout of the file that `ranks` ranks of a node share."""
        return NodeFile(ranks, self.segment_bytes(ranks))

    def segment_bytes(self, ranks: int) -> int:
        """Return the bytes that the segment of `ranks` ranks of a node takes."""
        return _native.segment_bytes(ranks, self.tuning.tuning(ranks))

    @property
    def terms(self) -> Terms:
        """Return the settings that the ranks must have in common to take the same steps."""
        return Terms(
            {STRATEGY_VARIABLE: self.strategy, **self.tuning.between_nodes()},
            {arrays.SWITCH: int(self.share_arrays), **self.tuning.in_nodes()},
        )


def _heartbeat(environ: Mapping[str, str]) -> float:
    text = environ.get(HEARTBEAT_VARIABLE, str(_DEFAULT_HEARTBEAT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise ConfigError(f"{HEARTBEAT_VARIABLE}={text!r} is no number of seconds from 1 to 3600")
    return seconds


def _strategy(environ: Mapping[str, str]) -> str:
    name = environ.get(STRATEGY_VARIABLE, STRATEGIES[0])
    if name not in STRATEGIES:
        raise ConfigError(f"{STRATEGY_VARIABLE}={name!r} is none of {', '.join(STRATEGIES)}")
    return name
