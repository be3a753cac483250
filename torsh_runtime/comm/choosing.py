"""Backends and devices as users name them."""

from __future__ import annotations

import os
from importlib import import_module

from torsh_runtime.backends.base import BackendKind, BackendType, ByDevice, ReduceOp
from torsh_runtime.backends.registry import is_available
from torsh_runtime.errors import BackendUnavailable, ConfigError

_NOT_COMPLEX = frozenset(
    (
        *(ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR),
        ReduceOp.PREMUL_SUM,
    )
)


def backend_type(name: str | BackendType) -> BackendKind:
    """The backend of this name, which may stand behind its device: "cpu:native"; or one for each
    device: "cpu:native,cuda:nccl", in any order.

    BackendUnavailable if there is none, ConfigError for one that does not serve that device, and
    for several of which not each has a device of its own.
    """
    parts = [part.strip() for part in name.split(",")]
    kinds = [_bare_type(part) for part in parts]
    if len(kinds) == 1:
        return kinds[0]
    devices = dict(zip(map(_device_of, kinds), kinds, strict=True))
    if len(devices) < len(kinds) or not all(":" in part for part in parts):
        raise ConfigError(
            f"backend {name!r}: of several backends each stands behind a device of its own, as in "
            f"'cpu:native,cuda:nccl'"
        )
    return ByDevice(**devices)


def _bare_type(name: str) -> BackendType:
    device, _, bare = name.rpartition(":")
    try:
        kind = BackendType(bare)
    except ValueError:
        known = ", ".join(BackendType)
        raise BackendUnavailable(f"backend {name!r}", f"Known backends: {known}.") from None
    if device not in ("", _device_of(kind)):
        raise ConfigError(f"backend {kind.value!r} serves {_device_of(kind)}, not {device!r}")
    return kind


def _device_of(kind: BackendType) -> str:
    return "cuda" if kind is BackendType.NCCL else "cpu"


def by_device(kind: BackendKind) -> dict[str, BackendType]:
    """The devices whose arrays it takes, "cpu" and "cuda", and which backend has them."""
    return kind._asdict() if isinstance(kind, ByDevice) else {_device_of(kind): kind}


def is_backend_available(backend: str) -> bool:
    """Whether this process could make groups with the backend, or with all of "cpu:x,cuda:y"."""
    try:
        return all(map(is_available, by_device(backend_type(backend.lower())).values()))
    except (BackendUnavailable, ConfigError):
        return False


def get_default_backend_for_device(device: object) -> str:
    """The backend for arrays on this device: "cpu", "cuda:1" or an object with such a `type`, as
    torch's devices. ValueError for other devices.
    """
    backends = {"cpu": BackendType.NATIVE, "cuda": BackendType.NCCL}
    kind = _kind_of_device(device)
    if kind not in backends:
        raise ValueError(f"there is no backend for {device!r}; there are for {list(backends)}")
    return backends[kind].value


def supports_complex(reduceOp: ReduceOp) -> bool:  # noqa: N803  (torch's name)
    """Whether complex numbers can be reduced by it."""
    return reduceOp not in _NOT_COMPLEX


def chosen_type(backend: str | BackendType | None, device_id: object) -> BackendKind | None:
    """The backend that was named, or that the device wants; None where neither says any."""
    if backend is not None:
        return backend_type(backend)
    if device_id is None or _kind_of_device(device_id) == "cpu":
        return None
    return BackendType.NCCL


def use_device(device_id: object, kind: BackendKind | None) -> None:
    """Make a GPU, by number or as torch's device, the current one of this thread, as a group with
    nccl wants it, and let its streams have 32 queues, if CUDA has not been begun with and nobody
    said otherwise; None, and a "cpu", leave it. ConfigError for others, and for a backend that uses
    none.
    """
    if device_id is None or (_kind_of_device(device_id) == "cpu" and kind is not BackendType.NCCL):
        return
    number = getattr(device_id, "index", device_id)
    if _kind_of_device(device_id) not in ("", "cuda") or not isinstance(number, int):
        raise ConfigError(f"device_id {device_id!r} is no GPU: give its number, or a torch.device")
    if kind is None or "cuda" not in by_device(kind):
        raise ConfigError(
            f"device_id {device_id!r} is for backend 'nccl'; {kind!s} works on CPUs: leave it out"
        )
    # What one stream waits for holds up others that share a queue with it: CUDA has 8 unless told.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if not is_available(BackendType.NCCL):
        raise BackendUnavailable("the nccl backend", "There is no NVIDIA driver or no nccl4py.")
    import_module("cuda.core").Device(number).set_current()


def check_no_options(pg_options: object) -> None:
    """ConfigError if there are any."""
    if pg_options is not None:
        raise ConfigError("no backend here has pg_options: give none")


def _kind_of_device(device: object) -> str:
    """ "cuda" of "cuda:1"; "" of a number."""
    return "" if isinstance(device, int) else str(getattr(device, "type", device)).partition(":")[0]
