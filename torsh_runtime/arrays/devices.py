"""Says what to do with arrays on devices that no backend here serves."""

from __future__ import annotations

import sys

_OF_TORCH = {"xpu": "xccl", "cuda": "nccl", "hpu": "hccl", "npu": "hccl"}
"""The backends of torch.distributed, or of its plugins, for kinds of devices."""


def way_out(kind: str) -> str:
    """Return what serves tensors on a kind of device, such as "xpu", that no backend here does."""
    copy = "pass a copy on the CPU"
    if kind == "meta":
        return "a tensor on it has no data: give it some first, by to_empty() for one"
    if kind not in _OF_TORCH:
        return f"no backend of torsh_runtime serves it: {copy}"
    return (
        f"no backend of torsh_runtime serves it: use torch.distributed's own, which torshrun "
        f"starts as torchrun does, init_process_group({_OF_TORCH[kind]!r}), or {copy}"
    )


def is_for_rocm() -> bool:
    """Return whether torch is loaded and is one for AMD's GPUs, whose tensors it calls CUDA's."""
    torch = sys.modules.get("torch")
    return torch is not None and getattr(torch.version, "hip", None) is not None
