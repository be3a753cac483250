"""Runs a job's ranks on the workers of a Dask cluster, and starts such clusters.

Importing this package raises BackendUnavailable if dask or distributed is missing or too old.
"""

from torsh_runtime.integrations.requirement import Requirement

Requirement("distributed", "dask", "2024.8", ("2024.8.0", "2026.8.0"), ("distributed",)).check()

from torsh_runtime.integrations.dask.integration import DaskConfig, DaskIntegration  # noqa: E402
from torsh_runtime.integrations.dask.running import run  # noqa: E402

__all__ = ["DaskConfig", "DaskIntegration", "run"]
