"""Lists the backends with the locations of their classes, and tells which can be used here."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torsh_runtime.backends.base import BackendType

_CLASSES = {
    BackendType.NATIVE: "native.backend.NativeBackend",
    BackendType.NCCL: "nccl.late.LateNcclBackend",
    BackendType.MPI: "library.mpi.MpiBackend",
    BackendType.GLOO: "library.gloo.GlooBackend",
    BackendType.SINGLE: "single.SingleBackend",
}
_LIBRARIES = {
    BackendType.NATIVE: "torsh_runtime.backends.native._native",
    BackendType.NCCL: "nccl.core",
    BackendType.MPI: "mpi4py",
    BackendType.GLOO: "torch",
}
"""The module of the library that each one stands on, if it does."""
_NVIDIA_DRIVER = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Device files of a Linux machine and of WSL; a driver has one of them."""


def backend_class(kind: BackendType) -> Any:
    """Return the class of this backend, importing its module."""
    module, _, name = _CLASSES[kind].rpartition(".")
    return getattr(import_module(f"torsh_runtime.backends.{module}"), name)


def is_available(kind: BackendType) -> bool:
    """Return whether the library of this backend is installed.

    Whether it works shows only when connecting. Never raises, and imports nothing but the parent
    packages of the library.
    """
    if kind is BackendType.NCCL and not any(path.exists() for path in _NVIDIA_DRIVER):
        return False
    try:
        return kind not in _LIBRARIES or find_spec(_LIBRARIES[kind]) is not None
    except (ImportError, ValueError, OSError):
        return False
