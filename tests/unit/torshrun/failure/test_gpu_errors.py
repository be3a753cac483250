"""Errors of GPUs, of programs on them and of what connects them, as people met them.

The texts are from public reports, cut to the lines that an error has. Lines of logs and of other
programs stand behind the name of an exception here.
"""

from __future__ import annotations

import pytest
from support.exits import an_exit, raised

from torshrun.failure.exit_diagnosis import diagnose
from torshrun.failure.kinds import Kind

_ASYNC = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call,so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1."
)
_TODAY = f"{_ASYNC}\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
BROKEN = (
    f"RuntimeError: CUDA error: uncorrectable ECC error encountered{_TODAY}",  # ChatGLM3#681
    f"RuntimeError: CUDA error: uncorrectable ECC error encountered{_ASYNC}",  # accelerate#1192
    "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at "
    "/pytorch/aten/src/THC/THCCachingHostAllocator.cpp:265",  # NVIDIA/semantic-segmentation#33
    "RuntimeError: failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_ECC_UNCORRECTABLE: "
    "uncorrectable ECC error encountered",  # DeepFaceLab_Linux#89
    "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a "
    "hardware error",  # daydreamlive/scope#749
    "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "RuntimeError: failed to get device remapped rows: ERROR_GPU_IS_LOST",  # leptonai/gpud#604
    "NVMLError_GpuIsLost: GPU is lost",  # rossumai/nvgpu#6
    "RuntimeError: Unable to determine the device handle for GPU0000:17:00.0: Unknown Error",
    "RuntimeError: NVRM: Xid (PCI:0000:9b:00): 119, pid=4071838, name=python, Timeout after 45s of "
    "waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL)",
    "RuntimeError: NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus",
    "RuntimeError: NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to "
    "0x1 (GPU Reset Required)",
)
NOT_READY = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
    "before calling NumCudaDevices() that might have already set an error? Error 802: system not "
    "yet initialized",  # LLaVA#683
    "RuntimeError: cuda runtime error (802) : system not yet initialized at "
    "../aten/src/THC/THCGeneral.cpp:50",
    "RuntimeError: CUDA error at bandwidthTest.cu:256 code=802(cudaErrorSystemNotReady)",
    "RuntimeError: cuInit(0) failed: CUDA_ERROR_SYSTEM_NOT_READY",  # jax#34113
    "RuntimeError: Couldn't init CUDA: Error (gpu_burn-drv.cpp:304): system not yet initialized",
)
PROGRAM = (
    f"RuntimeError: CUDA error: device-side assert triggered{_TODAY}",  # nanoGPT#470
    "RuntimeError: cuda runtime error (59) : device-side assert triggered",
    f"RuntimeError: CUDA error: an illegal memory access was encountered{_TODAY}",
    "RuntimeError: CUDA error: an illegal memory access was encountered (copy_device_to_device at "
    "/pytorch/aten/src/ATen/native/cuda/Copy.cu:98)",  # UDT_pytorch#3
    f"torch.AcceleratorError: CUDA error: unknown error{_TODAY}",  # 3dgrut#191
)
LATE = (
    f"RuntimeError: CUDA error: the launch timed out and was terminated{_ASYNC}",  # CenterFusion#76
    "numba.cuda.cudadrv.driver.CudaAPIError: [702] Call to cuMemcpyDtoH results in "
    "CUDA_ERROR_LAUNCH_TIMEOUT",  # numba#4351
    "RuntimeError: Check failed: error == cudaSuccess (6 vs. 0)  the launch timed out and was "
    "terminated",  # caffe-windows#250
    "RuntimeError: Cuda error in file 'test_compress.cpp' in line 467 : the launch timed out and "
    "was terminated.",  # cudpp#146
    f"RuntimeError: CUDA error: the launch timed out and was terminated{_TODAY}",  # MinerU#2117
)
FABRIC = (
    "torch.distributed.DistBackendError: NCCL error in: "
    "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.18.6\nncclSystemError: System call (e.g. socket, "
    "malloc) or external library call failed or device error. \nLast error:\n"
    "socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host",
    "RuntimeError: NCCL Error 2: unhandled system error\nCall to ibv_modify_qp failed with error "
    "Connection timed out errno 110",  # NVIDIA/nccl#2013
    "RuntimeError: misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network "
    "is unreachable",  # NVIDIA/nccl-tests#185
    "RuntimeError: Failed to modify QP to RTR: Connection timed out",  # uccl#641
    "RuntimeError: NET/IBP:Got completion from peer 7.6.13.83<36315> with status=12 opcode=32698 "
    "len=32696 vendor err 129 (Send)",  # NVIDIA/nccl#1664
)
LOST_PEER = (
    "torch.distributed.DistBackendError: NCCL error in: "
    "../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1347, remote process exited or there was "
    "a network error, NCCL version 2.18.5\nncclRemoteError: A call failed possibly due to a "
    "network error or a remote process exiting prematurely.",  # NVIDIA/nccl#934
    "torch.distributed.DistBackendError: NCCL error in: "
    "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a "
    "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network "
    "error or a remote process exiting prematurely.\nLast error:\nsocketProgressOpt: Call to recv "
    "from 172....<33759> failed : Connection reset by peer",  # NVIDIA/nccl#2076
    "RuntimeError: NCCL error: remote process exited or there was a network error, NCCL version "
    "2.20.5\nncclRemoteError: A call failed possibly due to a network error or a remote process "
    "exiting prematurely.\nLast error:\nNET/IB : Got completion from peer 172.21.17.89<38536> with "
    "error 5, opcode 48, len 32710, vendor err 249",  # DeepEP#106
)
CASES = (
    *((text, Kind.GPU, "take the node out") for text in BROKEN),
    *((text, Kind.GPU, "nvidia-fabricmanager") for text in NOT_READY),
    *((text, Kind.GPU_PROGRAM, "CUDA_LAUNCH_BLOCKING=1") for text in PROGRAM),
    *((text, Kind.GPU_PROGRAM, "display") for text in LATE),
    *((text, Kind.NETWORK, "NCCL_DEBUG=INFO") for text in FABRIC),
    *((text, Kind.PEER_LOST, "NCCL_DEBUG=INFO") for text in LOST_PEER),
)


@pytest.mark.parametrize(("error", "kind", "hint"), CASES)
def test_an_error_has_its_kind_and_advice(error: str, kind: Kind, hint: str) -> None:
    found = diagnose(an_exit(0, 1 << 8, stderr=raised(error), program="/bin/python3"))
    assert (found.kind, hint in found.advice) == (kind, True), found
    assert "MASTER_ADDR" not in found.hint


def test_an_offer_of_device_side_assertions_is_no_assertion() -> None:
    said = f"RuntimeError: CUDA error: an illegal memory access was encountered{_TODAY}"
    assert "compute-sanitizer" in diagnose(an_exit(0, 1 << 8, stderr=raised(said))).advice


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: NVRM: Xid (PCI:0000:01:00): 31, pid=3, MMU Fault",
        "RuntimeError: NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU "
        "Reset Required) to 0x0 (None)",
    ],
)
def test_what_a_program_may_cause_is_no_broken_gpu(line: str) -> None:
    assert diagnose(an_exit(0, 1 << 8, stderr=raised(line))).kind is not Kind.GPU


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: the logging system not yet initialized",
        "OSError: server returned error 802",
        "RuntimeError: gave up after 5 attempts (transport retry)",
        "RuntimeError: unhandled system error in handler",
        "RuntimeError: unhealthy: uncorrectable ECC errors: 0, row remap failure: No, disk: 97 %",
        "RuntimeError: row_remap_pending=False",
        "AssertionError: CUDA error count = 0, expected one",
    ],
)
def test_words_that_others_use_as_well_are_of_no_gpu(line: str) -> None:
    found = diagnose(an_exit(0, 1 << 8, stderr=raised(line)))
    assert found.kind is Kind.EXCEPTION, found


def test_a_report_of_errors_counts_if_there_are_some() -> None:
    for line in ("ValueError: uncorrectable ECC errors: 3", "ValueError: row remap pending: Yes"):
        assert diagnose(an_exit(0, 1 << 8, stderr=raised(line))).kind is Kind.GPU
