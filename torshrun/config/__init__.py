"""What the launcher was asked to do: one frozen LaunchConfig, valid before anything starts."""

from torshrun.config.gather import gather
from torshrun.config.job import Kind, LaunchConfig, OutputConfig
from torshrun.config.resolve import Resolution, resolve, validate
from torshrun.config.setting import Setting, Settings

__all__ = [
    "Kind",
    "LaunchConfig",
    "OutputConfig",
    "Resolution",
    "Setting",
    "Settings",
    "gather",
    "resolve",
    "validate",
]
