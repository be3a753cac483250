"""Dask: a rank on each worker of a cluster, and the cluster itself.

Importing this raises BackendUnavailable where dask and distributed are absent or too old.
"""

from torsh_runtime.integrations.requirement import Requirement

Requirement("distributed", "dask", "2024.8", ("2024.8.0", "2026.8.0"), ("distributed",)).check()

from torsh_runtime.integrations.dask.integration import DaskConfig, DaskIntegration  # noqa: E402
from torsh_runtime.integrations.dask.running import run  # noqa: E402

__all__ = ["DaskConfig", "DaskIntegration", "run"]
