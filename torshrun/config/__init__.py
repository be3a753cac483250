"""What the launcher was asked to do: one frozen LaunchConfig, valid before anything starts."""

from torshrun.config.job import Kind, LaunchConfig, OutputConfig
from torshrun.config.resolve import resolve

__all__ = ["Kind", "LaunchConfig", "OutputConfig", "resolve"]
