"""Backends and devices as users name them."""

from __future__ import annotations

from importlib import import_module

from torsh_runtime.backends.base import BackendType, ReduceOp
from torsh_runtime.backends.registry import is_available
from torsh_runtime.errors import BackendUnavailable, ConfigError

_NOT_COMPLEX = frozenset(
    (
        *(ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR),
        ReduceOp.PREMUL_SUM,
    )
)


def backend_type(name: str | BackendType) -> BackendType:
    """The backend of this name, which may stand behind its device: "cpu:native".

    BackendUnavailable if there is none, ConfigError for one that does not serve that device, and
    for several in one name.
    """
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1:
        raise ConfigError(
            f"backend {name!r}: a group has one backend here. Name the one that the default group "
            f"is to have, and make a group for the other arrays with new_group(backend=...)"
        )
    device, _, bare = parts[0].rpartition(":")
    try:
        kind = BackendType(bare)
    except ValueError:
        known = ", ".join(BackendType)
        raise BackendUnavailable(f"backend {name!r}", f"Known backends: {known}.") from None
    if device not in ("", device_of(kind)):
        raise ConfigError(f"backend {kind.value!r} serves {device_of(kind)}, not {device!r}")
    return kind


def device_of(kind: BackendType) -> str:
    """The kind of device whose arrays a backend takes: "cpu" or "cuda"."""
    return "cuda" if kind is BackendType.NCCL else "cpu"


def is_backend_available(backend: str) -> bool:
    """Whether this process could make groups with the backend, or with all of "cpu:x,cuda:y"."""
    try:
        return all(is_available(backend_type(part)) for part in backend.lower().split(","))
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


def chosen_type(backend: str | BackendType | None, device_id: object) -> BackendType | None:
    """The backend that was named, or that the device wants; None where neither says any."""
    if backend is not None:
        return backend_type(backend)
    if device_id is None or _kind_of_device(device_id) == "cpu":
        return None
    return BackendType.NCCL


def use_device(device_id: object, kind: BackendType | None) -> None:
    """Make a GPU, by number or as torch's device, the current one of this thread, as an nccl group
    wants it; None, and a "cpu", leave it. ConfigError for others, or a backend that uses none.
    """
    if device_id is None or (_kind_of_device(device_id) == "cpu" and kind is not BackendType.NCCL):
        return
    number = getattr(device_id, "index", device_id)
    if _kind_of_device(device_id) not in ("", "cuda") or not isinstance(number, int):
        raise ConfigError(f"device_id {device_id!r} is no GPU: give its number, or a torch.device")
    if kind is not BackendType.NCCL:
        raise ConfigError(
            f"device_id {device_id!r} is for backend 'nccl'; {kind!s} works on CPUs: leave it out"
        )
    if not is_available(kind):
        raise BackendUnavailable("the nccl backend", "There is no NVIDIA driver or no nccl4py.")
    import_module("cuda.core").Device(number).set_current()


def check_no_options(pg_options: object) -> None:
    """ConfigError if there are any."""
    if pg_options is not None:
        raise ConfigError("no backend here has pg_options: give none")


def _kind_of_device(device: object) -> str:
    """ "cuda" of "cuda:1"; "" of a number."""
    return "" if isinstance(device, int) else str(getattr(device, "type", device)).partition(":")[0]
