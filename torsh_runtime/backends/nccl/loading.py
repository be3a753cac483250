"""Loads nccl4py and cuda-core, which takes about a second, beside the program's own work."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TypeVar, cast

from torsh_runtime.arrays.devices import is_for_rocm, way_out
from torsh_runtime.backends.base import BackendType
from torsh_runtime.backends.nccl.library import Cuda, Device, Nccl
from torsh_runtime.backends.registry import is_available
from torsh_runtime.errors import BackendUnavailable

T = TypeVar("T")

_log = logging.getLogger("torsh_runtime")
_begun: list[threading.Thread] = []
_PATIENCE = 30.0
"""Seconds that a fork waits for both to be loaded."""


def begin_loading() -> None:
    """Begin to load both in a thread, once in a process, if NCCL can be used here."""
    if _begun or not is_available(BackendType.NCCL):
        return
    thread = threading.Thread(target=_import_both, name="torsh-nccl-import", daemon=True)
    _begun.append(thread)
    os.register_at_fork(before=_before_fork)
    thread.start()


def await_loaded() -> None:
    """Wait until both are loaded, or cannot be. A driver that hangs makes that take for ever."""
    _await()
    with suppress(ImportError, RuntimeError):
        _import_both()


def load(number: int | None) -> tuple[Nccl, Cuda, Device]:
    """Return nccl4py, CUDA's own bindings, and the device, which is the current one for None.

    Raises BackendUnavailable.
    """
    _await()
    try:
        nccl, cuda = _import_both()
    except (ImportError, RuntimeError) as error:
        raise unavailable(str(error)) from None
    place = () if number is None else (number,)
    return nccl, cuda, library_call(lambda: cuda.Device(*place))


def library_call(call: Callable[[], T]) -> T:
    """Return the result of a call. Raises BackendUnavailable if it fails.

    It fails without a driver or a GPU.
    """
    try:
        return call()
    except Exception as error:
        raise unavailable(f"{type(error).__name__}: {error}") from error


def unavailable(why: str) -> BackendUnavailable:
    """Return the error that says why there is no NCCL here, and what it needs."""
    if is_for_rocm():
        words = f"torch here is one for AMD's GPUs, and it is for NVIDIA's; {way_out('cuda')}"
        return BackendUnavailable("the nccl backend", words)
    return BackendUnavailable(
        "the nccl backend",
        f"{why.rstrip('.')}. It needs an NVIDIA GPU, its driver, and "
        f"`pip install '.[cuda12]'` or `'.[cuda13]'` in torshrun's checkout.",
    )


def _import_both() -> tuple[Nccl, Cuda]:
    return cast(Nccl, import_module("nccl.core")), cast(Cuda, import_module("cuda.core"))


def _before_fork() -> None:
    """Wait for what is being loaded, which the child could not load. A driver may hang in it, and
    most children never use NCCL, so the fork goes on after some time."""
    _await(_PATIENCE)
    if any(thread.is_alive() for thread in _begun if thread is not threading.current_thread()):
        _log.warning(
            "nccl4py has not been loaded within %g s: a process that is forked now cannot use the "
            "nccl backend. See whether the GPUs' driver hangs (dmesg)",
            _PATIENCE,
        )


def _await(seconds: float | None = None) -> None:
    for thread in _begun:
        if thread is not threading.current_thread():
            with suppress(RuntimeError):  # it has not been started yet
                thread.join(seconds)
