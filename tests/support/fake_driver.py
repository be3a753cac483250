"""The part of cuda.bindings.driver that asks about captures of streams in graphs, for fake_cuda."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from support.fake_cuda import LEGACY, CUDAError, machine


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906


class CUstreamCaptureStatus(IntEnum):
    CU_STREAM_CAPTURE_STATUS_NONE = 0
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
    CU_STREAM_CAPTURE_MODE_RELAXED = 2


def cuStreamIsCapturing(hStream: Any) -> Any:  # noqa: N802, N803  (CUDA's names)
    """The default stream cannot be asked about while another, blocking one is being captured."""
    none = CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    try:
        queue = machine().queue(int(hStream))
    except CUDAError:
        return CUresult.CUDA_ERROR_INVALID_HANDLE, none
    if int(hStream) in LEGACY and any(each.blocking for each in machine().captured_queues()):
        return CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, none
    if queue.capture is None:
        return CUresult.CUDA_SUCCESS, none
    return CUresult.CUDA_SUCCESS, CUstreamCaptureStatus(1 + queue.capture.is_invalid)


def cuThreadExchangeStreamCaptureMode(mode: Any) -> Any:  # noqa: N802
    before = machine().exchange_mode(int(mode))
    return CUresult.CUDA_SUCCESS, CUstreamCaptureMode(before)
