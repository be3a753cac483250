"""Words of CUDA and NCCL about GPUs, programs on them and the links between them."""

from __future__ import annotations

from torshrun.failure.kinds import Kind, Pattern

_DRAIN = (
    "See dmesg (lines with Xid) and `nvidia-smi -q`; take the node out of the job and have the GPU "
    "reset or the machine rebooted: a restart on it fails again."
)
_NONE = r"(?![\w ]{0,24}[:=] *(?:0|[Nn]o|[Nn]one|[Ff]alse|N/A)\b)"
"""Stands after words about a fault that reports also have where there is none."""
GPU_PATTERNS = (
    Pattern(
        Kind.GPU,
        r"\ba GPU of \S+ is broken: ",
        "The GPU itself is broken, or the system has lost it.",
        f"{_DRAIN} A job that uses no GPU runs there with CUDA_VISIBLE_DEVICES= (empty).",
    ),
    Pattern(
        Kind.GPU,
        rf"[Uu]ncorrectable (?:ECC|NVLink){_NONE}|"
        r"CUDA_ERROR_(?:ECC|NVLINK)_UNCORRECTABLE|"
        r"cudaError(?:ECC|Nvlink)Uncorrectable|[Hh]ardware stack error|"
        r"peer GPU memory over nvlink or a hardware error|GPU is lost|ERROR_GPU_IS_LOST|"
        r"fallen off the bus|[Uu]nable to determine the device handle|"
        rf"row.?remap\w* (?:fail|pend)\w*{_NONE}|"
        r"\bXid \((?:PCI:)?[\da-f:.]+\): (?:48|62|64|74|79|95|119|120|140)\b|"
        r"GPU recovery action changed from .* to \S+ \(.*Re(?:set|boot) Required",
        "The GPU itself is broken, or the system has lost it.",
        _DRAIN,
    ),
    Pattern(
        Kind.GPU,
        r"\b(?:802|CUDA)\b.*system not yet initialized|(?:CUDA_ERROR_|cudaError)SystemNotReady|"
        r"CUDA_ERROR_SYSTEM_NOT_READY",
        "The GPUs' fabric is not set up: on machines with NVSwitch the fabric manager does that, "
        "and it does not run, or has another version than the driver.",
        "See `systemctl status nvidia-fabricmanager`, and whether its version is the driver's "
        "(nvidia-smi); take the node out of the job until it runs.",
    ),
    Pattern(
        Kind.GPU,
        r"CUDA-capable device(?:s|\(s\))? (?:is|are|is/are) busy or unavailable|"
        r"(?:CUDA_ERROR_|cudaError)Devices?Unavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
        "The GPU is taken, or may not be used: by a process that has it alone, or in a mode that "
        "lets in only one.",
        "`nvidia-smi` shows who uses it, `nvidia-smi -q -d COMPUTE` the mode. Each rank has to use "
        "the GPU of its LOCAL_RANK; if nobody uses it, it may be broken: see dmesg (Xid).",
    ),
    Pattern(
        Kind.GPU_PROGRAM,
        r"device-side assert triggered|CUDA_ERROR_ASSERT|cudaErrorAssert",
        "A check within a kernel on the GPU failed: most often an index is out of range, as a "
        "label or a token that is not below the number of classes or the size of the vocabulary.",
        "Its words before that may name the kernel and the check. Kernels run later than their "
        "calls: CUDA_LAUNCH_BLOCKING=1 has the traceback show the right line, and the same batch "
        "on the CPU says more.",
    ),
    Pattern(
        Kind.GPU_PROGRAM,
        r"illegal memory access|misaligned address|illegal instruction was encountered|"
        r"invalid (?:program counter|address space)|unspecified launch failure|"
        r"CUDA_ERROR_(?:ILLEGAL_|MISALIGNED|LAUNCH_FAILED|INVALID_PC)|"
        r"cudaError(?:Illegal|Misaligned|LaunchFailure)|"
        r"(?:CUBLAS|CUDNN|cublas|cudnn)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
        "A kernel on the GPU went wrong: it used memory that is not its own, or was stopped.",
        "Kernels run later than their calls: CUDA_LAUNCH_BLOCKING=1 has the traceback show the "
        "right line, compute-sanitizer the access. Where the same program runs elsewhere, the GPU "
        "may be broken: see dmesg (Xid).",
    ),
    Pattern(
        Kind.GPU_PROGRAM,
        r"the launch timed out and was terminated|CUDA_ERROR_LAUNCH_TIMEOUT|cudaErrorLaunchTimeout",
        "A kernel ran for longer than the driver allows on a GPU that also drives a display.",
        "Use a GPU without a display, or have no graphical session on it; or make kernels shorter.",
    ),
    Pattern(
        Kind.GPU_PROGRAM,
        r"(?:CUBLAS|CUDNN|cublas|cudnn)_STATUS_NOT_INITIALIZED",
        "cuBLAS or cuDNN could not be set up: most often the GPU's memory was used up, or a kernel "
        "before that had gone wrong.",
        "Look at the memory (nvidia-smi) and try a smaller batch; CUDA_LAUNCH_BLOCKING=1 shows "
        "whether another call failed before.",
    ),
    Pattern(
        Kind.NETWORK,
        r"\bibv_\w+ (?:failed|call)|NET/IB\w*\b.*(?:[Ee]rror|[Ff]ail|completion)|"
        r"(?i:nccl).*unhandled system error|ncclSystemError|NCCL_ERROR_SYSTEM_ERROR|"
        r"Local QP operation err|transport retry counter|"
        r"[Ff]ailed to modify QP",
        "NCCL failed at what connects the GPUs' nodes: the system, a socket or an InfiniBand or "
        "RoCE adapter gave it an error.",
        "NCCL_DEBUG=INFO has it say which call failed, and which network it chose. See whether the "
        "link is up (ibstat, `ip link`) and the limits suffice (`ulimit -l` unlimited, /dev/shm); "
        "NCCL_SOCKET_IFNAME and NCCL_IB_HCA choose interfaces.",
    ),
    Pattern(
        Kind.GPU,
        r"NCCL\b.*unhandled cuda error|ncclUnhandledCudaError|unhandled cuda error",
        "A call of CUDA failed within NCCL: the GPU, its memory, or access from one to another.",
        "NCCL_DEBUG=INFO has it say which call failed, and why. Each rank has to use the GPU of "
        "its LOCAL_RANK; other processes may have used up its memory (nvidia-smi).",
    ),
    Pattern(
        Kind.USAGE,
        r"module 'torch\._C' has no attribute '_(?P<device>cuda|xpu|mps)_",
        "It asks for {name}, and the torch that is installed here was built without it.",
        "Install a build of torch that has it, or have the script choose the device cpu where "
        "torch.cuda.is_available() is false.",
    ),
    Pattern(
        Kind.USAGE,
        r"no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|cudaErrorNoDevice",
        "It asks for a GPU, and CUDA finds none here.",
        "See nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the container or the scheduler has "
        "given the job GPUs.",
    ),
)
GPU_FALLBACKS = (
    Pattern(
        Kind.USAGE,
        r"ncclInvalid(?:Usage|Argument)|NCCL\b.*\binvalid (?:usage|argument)",
        "NCCL was used in a way that it does not allow: two ranks on one GPU, for instance, or a "
        "communicator that is used by several threads.",
        "NCCL_DEBUG=WARN has it say which. Each rank has to use the GPU of its LOCAL_RANK.",
    ),
    Pattern(
        Kind.GPU_PROGRAM,
        r"\b(?:CUDA|HIP|cuDNN|NCCL) error\b(?! count)|\bcuda runtime error\b|\bCUDA_ERROR_\w+",
        "A call of a GPU library failed.",
        "Kernels run later than their calls: CUDA_LAUNCH_BLOCKING=1 has the traceback show the "
        "right line. NCCL_DEBUG=INFO has NCCL say which call failed.",
    ),
)
"""For words of which no others tell more."""
