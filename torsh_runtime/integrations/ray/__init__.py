"""Runs ranks in the workers of ray.train, and collectives between Ray actors.

Importing this package raises BackendUnavailable if ray is missing or too old.
"""

from torsh_runtime.integrations.requirement import Requirement

Requirement("ray", "ray", "2.60", ("2.60.0",), ("ray.train",)).check()

from torsh_runtime.integrations.ray.integration import RayConfig, RayIntegration  # noqa: E402
from torsh_runtime.integrations.ray.train import TorshConfig, TorshTrainer  # noqa: E402

__all__ = ["RayConfig", "RayIntegration", "TorshConfig", "TorshTrainer"]
