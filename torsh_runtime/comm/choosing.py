"""Interprets the names of backends and devices that users give."""

from __future__ import annotations

import os

from torsh_runtime.arrays.devices import way_out
from torsh_runtime.backends.base import BackendKind, BackendType, ByDevice, ReduceOp
from torsh_runtime.backends.nccl.device import make_current
from torsh_runtime.backends.registry import is_available
from torsh_runtime.errors import BackendUnavailable, ConfigError

_NOT_COMPLEX = frozenset(
    (
        *(ReduceOp.MIN, ReduceOp.MAX, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR),
        ReduceOp.PREMUL_SUM,
    )
)


def backend_type(name: str | BackendType) -> BackendKind:
    """Return the backend of this name, or one for each kind of device.

    The name may follow that of its device, as in "cpu:native". Several are "cpu:native,cuda:nccl",
    in any order.

    Raises BackendUnavailable for an unknown name, ConfigError for a backend that does not serve the
    device and for several that do not each have a device of their own.
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
    """Return the backend of each kind of device, "cpu" and "cuda", whose arrays `kind` takes."""
    return kind._asdict() if isinstance(kind, ByDevice) else {_device_of(kind): kind}


def is_backend_available(backend: str) -> bool:
    """Return whether this process could create groups with the backend.

    Args:
        backend: A name such as "native" or "NCCL", in any case, or "cpu:native,cuda:nccl": then all
            of them must be available.

    Returns:
        False also for unknown names.

    Example:
        ```python
        backend = "nccl" if tr.is_backend_available("nccl") else "native"
        tr.init_process_group(backend)
        ```
    """
    try:
        return all(map(is_available, by_device(backend_type(backend.lower())).values()))
    except (BackendUnavailable, ConfigError):
        return False


def get_default_backend_for_device(device: object) -> str:
    """Return the name of the backend for arrays on a device.

    Args:
        device: "cpu", "cuda", "cuda:1", or an object with such a `type`, as torch's devices.

    Returns:
        "native" or "nccl".

    Raises:
        ValueError: For other devices.

    Example:
        ```python
        tr.init_process_group(tr.get_default_backend_for_device("cuda:0"))  # nccl
        ```
    """
    backends = {"cpu": BackendType.NATIVE, "cuda": BackendType.NCCL}
    kind = _kind_of_device(device)
    if kind not in backends:
        raise ValueError(
            f"there is no backend for {device!r}; there are for {list(backends)}; {way_out(kind)}"
        )
    return backends[kind].value


def supports_complex(reduceOp: ReduceOp) -> bool:  # noqa: N803  (torch's name)
    """Return whether a reduction is defined for complex numbers.

    Args:
        reduceOp: The reduction.

    Example:
        ```python
        tr.supports_complex(tr.ReduceOp.SUM)  # True
        tr.supports_complex(tr.ReduceOp.MAX)  # False
        ```
    """
    return reduceOp not in _NOT_COMPLEX


def chosen_type(backend: str | BackendType | None, device_id: object) -> BackendKind | None:
    """Return the backend that was named, or those that a GPU needs; None if neither decides.

    With a GPU, numbers, barriers and objects go over the processors, and wait for no kernel.
    """
    if backend is not None:
        return backend_type(backend)
    if device_id is None or _kind_of_device(device_id) == "cpu":
        return None
    return ByDevice(BackendType.NATIVE, BackendType.NCCL)


def use_device(device_id: object, kind: BackendKind | None) -> None:
    """Make a GPU the current one of this thread, as a group with nccl needs it.

    `device_id` is its number or torch's device; None and a "cpu" change nothing. Unless CUDA is in
    use already or the user chose a number, the GPU's streams get 32 queues.

    Raises ConfigError for other devices and for a backend that uses no GPU, BackendUnavailable
    without a driver or nccl4py. If `kind` uses GPUs, nccl4py is loaded from now on in a thread.
    """
    if kind is not None and "cuda" in by_device(kind):
        from torsh_runtime.backends.nccl.loading import begin_loading  # jobs on CPUs do without

        begin_loading()
    if device_id is None or (_kind_of_device(device_id) == "cpu" and kind is not BackendType.NCCL):
        return
    number = getattr(device_id, "index", device_id)
    if _kind_of_device(device_id) not in ("", "cuda") or not isinstance(number, int):
        other = _kind_of_device(device_id)
        raise ConfigError(
            f"device_id {device_id!r} is no NVIDIA GPU: give its number, or a torch.device"
            + (f"; {way_out(other)}" if other not in ("", "cpu", "cuda") else "")
        )
    if kind is None or "cuda" not in by_device(kind):
        raise ConfigError(
            f"device_id {device_id!r} is for backend 'nccl'; {kind!s} works on CPUs: leave it out"
        )
    # What one stream waits for holds up others that share a queue with it: CUDA has 8 unless told.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if not is_available(BackendType.NCCL):
        from torsh_runtime.backends.nccl.loading import unavailable

        raise unavailable("There is no NVIDIA driver or no nccl4py")
    make_current(number)


def check_no_options(pg_options: object) -> None:
    """Raise ConfigError if there are any options."""
    if pg_options is not None:
        raise ConfigError("no backend here has pg_options: give none")


def _kind_of_device(device: object) -> str:
    """Return the kind of a device, such as "cuda" for "cuda:1", or "" for a number."""
    return "" if isinstance(device, int) else str(getattr(device, "type", device)).partition(":")[0]
