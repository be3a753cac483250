"""Patterns of workers' words for each kind of failure, with the reason and what to do."""

from __future__ import annotations

from torshrun.failure.gpu_error_patterns import GPU_FALLBACKS, GPU_PATTERNS
from torshrun.failure.installation_patterns import INSTALLATION_PATTERNS
from torshrun.failure.kinds import Kind, Pattern

USAGE = (
    "It refused its arguments.",
    "Options for torshrun go before the script's name, options for the script after it.",
)
"""Reason and advice for a program that refused its arguments."""
_IN_USE = (
    "{name} is taken: another process listens there, or one that ended has left it busy.",
    "`ss -ltnp` names the holder. Leave --master-port out and torshrun picks a free port for each "
    "round, which it holds: a server on MASTER_PORT needs SO_REUSEADDR. A port that the script "
    "chooses must differ from rank to rank (add LOCAL_RANK to it).",
)
DAMAGED = (
    "A file is damaged or cut short (truncated): it was not written to its end, or not copied "
    "whole.",
    "Compare its size and checksum with a good copy, and go back to an earlier checkpoint; write "
    "to another name first and rename the file once it is whole.",
)
PATTERNS = (
    Pattern(
        Kind.GPU_MEMORY,
        r"CUDA out of memory|(?:CUDA|HIP) error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|"
        r"cudaErrorMemoryAllocation|"
        r"cupy\S*\.OutOfMemoryError|HIP out of memory|"
        r"(?:CUDNN|CUBLAS|cublas|cudnn)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory",
        "The GPU's memory is used up.",
        "Smaller batches, sharding or offloading need less; nvidia-smi shows who else uses it.",
    ),
    *GPU_PATTERNS,
    Pattern(
        Kind.SHARED_MEMORY,
        r"out of shared memory|unable to \w.*(?:shared memory|</torch_)|"
        r"unable to write to file </|No space left.*shm|(?:shm|shared memory).*No space left|"
        r"killed by signal: Bus error",
        "/dev/shm, where processes share memory, is full or too small.",
        "`df -h /dev/shm` shows its size; give the container more (--shm-size, or a memory volume "
        "there), let DataLoaders have fewer workers, or set_sharing_strategy('file_system').",
    ),
    Pattern(
        Kind.ALLOCATION,
        r"^(?:\w+\.)*_?(?:Array)?MemoryError\b|Cannot allocate memory|std::bad_alloc|"
        r"not enough memory: you tried to allocate|(?:failed to|[Cc]annot) allocate memory",
        "The system refused it memory: it asked for more than exists or than it may have.",
        "Look at the size asked for, at `ulimit -v` and at `free -m`; smaller pieces need less.",
    ),
    *INSTALLATION_PATTERNS,
    Pattern(
        Kind.SYNTAX,
        r"^(?:SyntaxError|IndentationError|TabError): ",
        "{program} cannot read this as Python.",
        "It is a slip in that line, or the file was written for another version of Python.",
    ),
    Pattern(
        Kind.ENCODING,
        r"^Unicode(?:De|En)?code?Error: '?(?P<name>[\w-]+)'? codec|^Unicode\w*Error: |"
        r"unsupported locale setting|invalid (?:continuation|start) byte|"
        r"codec can't (?:de|en)code",
        "The bytes are not text in the encoding that they are read or written as ({name}).",
        "Say which encoding a file has (open(…, encoding='utf-8')), have a UTF-8 locale "
        "(LC_ALL=C.UTF-8) or PYTHONUTF8=1 on all nodes, and look at that file's bytes.",
    ),
    Pattern(
        Kind.LIMIT,
        r"Too many open files|\bEMFILE\b|\bENFILE\b",
        "It has reached its limit of open files (descriptors).",
        "Raise the limit (`ulimit -n`; nofile of the container or of limits.conf), or close what "
        "is not needed any more: DataLoaders, files, sockets.",
    ),
    Pattern(
        Kind.LIMIT,
        r"can't start new thread|pthread_create\b.*failed|"
        r"[Rr]esource temporarily unavailable|unable to (?:create|start) .*thread|"
        r"\bBlockingIOError: \[Errno 11\]|Cannot fork|fork: retry",
        "The system allows it no further thread or process: the limit of processes is reached.",
        "Look at `ulimit -u` (nproc), at the pids limit of the container or cgroup (pids.max), and "
        "at who starts so many threads: OMP_NUM_THREADS and DataLoaders' workers count per rank.",
    ),
    Pattern(
        Kind.LIMIT,
        r"File too large|\bEFBIG\b",
        "It wrote a file larger than allowed.",
        "Raise the limit of the file size (`ulimit -f`), or write smaller files; some file systems "
        "have a limit of their own.",
    ),
    Pattern(
        Kind.LIMIT,
        r"File name too long|\bENAMETOOLONG\b",
        "The name of a file or a path is too long: most file systems take names of 255 bytes, and "
        "the system paths of 4096.",
        "Shorten the name, as by a hash of what it is made of, and write the rest into the file.",
    ),
    Pattern(
        Kind.LIMIT,
        r"Argument list too long|\bE2BIG\b|inotify.*(?:limit|No space)|"
        r"\blimit (?:of \S+ )?(?:reached|exceeded)|[Ee]xceeded? (?:the|its) \w* ?limit",
        "A limit of the system or of the service is reached.",
        "See which limit its words name (`ulimit -a`), and raise it or ask for less.",
    ),
    Pattern(
        Kind.DISK_FULL,
        r"No space left on device|[Dd]isk quota exceeded|\bENOSPC\b|\bEDQUOT\b|"
        r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|disk (?:is )?full|"
        r"^OSError: \d+ requested and \d+ written",
        "A disk, or a quota on it, is full.",
        "`df -h` and `df -i` show which (`quota -s` for quotas); remove old checkpoints and logs, "
        "or write where there is space.",
    ),
    Pattern(
        Kind.DISK_FULL,
        r"Read-only file system|\bEROFS\b",
        "The file system is read-only.",
        "`mount | grep ' ro'` shows which; after an error of the disk the kernel mounts it "
        "read-only (dmesg), and containers may have volumes so. Write somewhere else.",
    ),
    Pattern(
        Kind.ADDRESS_IN_USE,
        r"[Aa]ddress already in use.*?(?P<name>port[ :]+\d+)|"
        r"(?P<where>port: \d+).*EADDRINUSE|[Aa]ddress already in use|EADDRINUSE",
        *_IN_USE,
    ),
    Pattern(
        Kind.USAGE,
        r"\bport must be 0-65535|\bport\b.{0,40}\b(?:out of range|between 0 and 65535)",
        "It asks for an impossible port: ports are numbers from 0 to 65535.",
        "See how the script computes ports, e.g. from a base and the rank; 0 takes any free one.",
    ),
    Pattern(
        Kind.CLOCK,
        r"certificate (?:is not yet valid|has expired)|[Cc]lock skew|RequestTimeTooSkewed|"
        r"\b(?:[mac]?time|date|\w*stamp|modified|issued|created)\b.*\bin the future|not yet valid|"
        r"ImmatureSignature|ExpiredSignature|token (?:is |has )?expired|clocks? (?:differ|drift)",
        "It uses a time of day that does not fit: a clock is wrong, or something has expired.",
        "Compare `date` on the nodes, and let NTP or chrony set their clocks (`timedatectl`).",
    ),
    Pattern(
        Kind.STORE,
        r"^(?:\w+\.)*(?:StoreError|StoreTimeout|DistStoreError|EtcdException): "
        r"(?!.*(?:refused|unreachable|No route|resolution|not known))|\betcdserver: |"
        r"failed to recv, got 0 bytes",
        "The store through which the ranks connect did not answer, or lacked the requested key.",
        "It is rank 0's or the agents' (or etcd): see whether that process is alive and reachable "
        "from here (MASTER_ADDR, MASTER_PORT; torshctl doctor).",
    ),
    Pattern(
        Kind.NETWORK,
        r"(?:invalid|unexpected) (?:value|reply|response|magic)\b.* (?:from|by) (?:the )?server|"
        r"\bprotocol (?:mismatch|error)\b|WRONG_VERSION_NUMBER|[Bb]adStatusLine|HTTP/\d\.\d 400",
        "Something else answers at that address and port: the store of another job, or another "
        "service.",
        "See which process has the port (`ss -ltnp` there), and where the address comes from: "
        "MASTER_ADDR and MASTER_PORT that are set by hand, for example in a profile, override what "
        "torshrun sets.",
    ),
    Pattern(
        Kind.NETWORK,
        r"(?:couldn't connect to|[Cc]annot reach) '?(?P<name>https?://[^\s':]+)|"
        r"HTTPS?Connection(?:Pool)?\(host='(?P<host>[^']*[a-z]\.[a-z]+)'|<urlopen error|"
        r"^FileNotFoundError: (?P<url>https?://[^\s/:]+)|"
        r"\bLocalEntryNotFoundError\b|\bOfflineModeIsEnabled\b",
        "It asks for something over the web, most often a file that is not on this node yet, and "
        "cannot reach {name}.",
        "Compute nodes often have no way out, or one by a proxy (HTTPS_PROXY): download the file "
        "on a node that has one, into a folder that all share (HF_HOME for Hugging Face's files, "
        "TORCH_HOME for torch.hub's), or give the script its path.",
    ),
    Pattern(
        Kind.NETWORK,
        r"Connection refused|No route to host|"
        r"(?:Network|Host) is (?:unreachable|down)|"
        r"Name or service not known|[Tt]emporary failure in name resolution|gaierror|"
        r"nodename nor servname|No address associated with hostname|getaddrinfo|"
        r"[Cc]onnection timed out|Cannot assign requested address|"
        r"Unable to find (?:address|interface)|"
        r"[Ff]ailed to connect|client socket has (?:timed out|failed)|Max retries exceeded|"
        r"[Nn]o (?:such |socket )?interface|[Nn]o device.*interface|Could not resolve",
        "It cannot reach a host or a service over the network.",
        "Look at the address it names: does the name resolve there, is the port open and the "
        "interface up (MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, "
        "firewalls)? torshctl doctor examines it.",
    ),
    Pattern(
        Kind.VERSION,
        r"Unsupported (?:global: GLOBAL|class) (?P<name>[\w.]+)|"
        r"was not an allowed global by default",
        "The file is whole, but holds objects of {name}, which torch.load() does not make since "
        "torch 2.6 unless it is asked to (weights_only).",
        "Keep tensors and plain values only, or allow that class "
        "(torch.serialization.add_safe_globals()); with weights_only=False a file may run any "
        "code, so that is for files that you trust.",
    ),
    Pattern(
        Kind.DAMAGED_FILE,
        r"PytorchStreamReader failed|invalid header or archive is corrupted|Ran out of input|"
        r"UnpicklingError|pickle data was truncated|BadZipFile|File is not a zip file|"
        r"not a gzipped file|CRC check failed|mmap an empty file|SafetensorError|"
        r"\b(?:file|checkpoint|archive|shard|data|header)\b.*\b(?:truncated|corrupt|damaged)|"
        r"\b(?:truncated|corrupt(?:ed)?|damaged)\b.*\b(?:file|checkpoint|archive|shard|data)\b|"
        r"\bchecksums?\b(?!.*\b(?:ranks?|param\w*|weights?|grad\w*|model)\b)|"
        r"mmap length is greater than file|unexpected end of (?:file|data)|"
        r"file seems not fully written|"
        r"^EOFError: (?!EOF when reading a line)|Cannot load file|"
        r"^(?:\w+\.)*CheckpointError: (?!.*(?:Permission denied|not permitted)).*"
        r"(?:that can be loaded\. .|makes no sense|no safetensors file|(?:is|are) lost)|"
        r"failed to interpret file",
        *DAMAGED,
    ),
    Pattern(
        Kind.NO_FILE,
        r"can't open file '(?P<path>[^'\n]+)|"
        r"^FileNotFoundError: .*?: '(?P<name>[^'\n]+)|^FileNotFoundError: |"
        r"No such file or directory|^(?:IsA|NotA)DirectoryError: |"
        r"Parent directory (?P<folder>\S+) does not exist",
        "A file or directory is not where it is looked for: {name}.",
        "Paths that do not begin with / count from the directory in which torshrun was started; "
        "on several nodes the file has to be on each of them, or on a file system that all share.",
    ),
    Pattern(
        Kind.PERMISSION,
        r"^PermissionError: |Permission denied|Operation not permitted|\bEACCES\b|\bEPERM\b",
        "The user who started torshrun may not do that.",
        "Look at the owner and mode of what it names (`ls -l`, `id`), and at what the container "
        "is permitted. A program has to be executable (`chmod +x`), on a file system that is not "
        "mounted with noexec.",
    ),
    Pattern(
        Kind.NAN,
        r"(?<![\w-]-)\b(?:nan|NaN|NAN|nans|NaNs)\b|\b[Nn]on-?finite\b|\b[Nn]ot finite\b|"
        r"^FloatingPointError: |"
        r"\b(?:loss|gradient|norm)\w*\b.*\b(?:inf|infinite)\b",
        "A loss, gradient or weight is no finite number any more (NaN or infinite).",
        "Look at the batch and the learning rate of that step: a smaller rate or warm-up, clipped "
        "gradients and a checked input help; torch.autograd.set_detect_anomaly() names the "
        "operation.",
    ),
    Pattern(
        Kind.USAGE,
        r"\bunrecognized arguments?: |\bthe following arguments are required: |No such option: ",
        *USAGE,
    ),
    Pattern(
        Kind.USAGE,
        r"doesn't have (?P<name>\w+) (?:\w+ )?built[ -]in|\b(?P<group>\w+) is only supported with "
        r"GPUs|(?:not compiled|not built|built without|compiled without) (?:with )?(?P<lib>\w+)|"
        r"No (?:CUDA|HIP|XPU) GPUs are available|Found no NVIDIA driver|[Nn]o GPUs? (?:was |were )?"
        r"found|invalid device ordinal|[Ii]nvalid (?:backend|device string)|[Uu]nknown backend|"
        r"Duplicate GPU detected|deserialize object on (?:a )?(?P<device>[A-Z]+)",
        "It asks for {name}, and this machine, or the library that is installed here, has none, or "
        "fewer than it asks for.",
        "Choose what there is (the backend gloo, the device cpu), install a build that has it "
        "(nccl needs a CUDA build and a GPU), or run it where there are as many GPUs as ranks "
        "(nvidia-smi, CUDA_VISIBLE_DEVICES, --nproc-per-node).",
    ),
    Pattern(
        Kind.USAGE,
        r"^EOFError: EOF when reading a line",
        "It asked for input, and nobody can give it any: stdin is at its end.",
        "Give the script what it asks for by its arguments, the environment or a file; input(), a "
        "prompt or pdb cannot be answered in a job.",
    ),
    Pattern(
        Kind.EXCEPTION,
        r"^(?:bdb\.)?BdbQuit\b",
        "A debugger (pdb) ended it: a breakpoint is left in, as breakpoint() or pdb.set_trace(), "
        "and nobody can answer it, since stdin is closed or at its end; or somebody has quit it.",
        "Take the breakpoint out: it stands at the program's own last line in the traceback, or "
        "before that. PYTHONBREAKPOINT=0 has Python pass over breakpoint().",
    ),
    Pattern(
        Kind.USAGE,
        r"environment variable (?P<name>\w+) expected, but not set|"
        r"Default process group has not been initialized|"
        r"initialize the default process group twice",
        "Its process group is not set up as the library expects: {name}.",
        "init_process_group() is to be called once, before anything that needs it, and without "
        "taking away the variables that torshrun sets (RANK, WORLD_SIZE, MASTER_ADDR, …).",
    ),
    Pattern(
        Kind.USAGE,
        r"^KeyError: '(?P<name>(?:SLURM|OMPI|PMIX?|MV2_COMM|PALS|FLUX|JSM|HOROVOD)_\w+)'",
        "It looks for {name}, which another launcher (srun, mpirun, horovodrun) sets for each rank "
        "that it starts, and torshrun does not.",
        "Choose the script's way for torchrun, if it has one: it takes its place from RANK, "
        "LOCAL_RANK and WORLD_SIZE, which torshrun sets. Else start it by that launcher.",
    ),
    Pattern(
        Kind.MISMATCH,
        r"\balltoallv?\.cc.*\binLength|Split sizes doesn't match total dim 0 size|"
        r"Number of tensor splits not equal to group size",
        "What it gives to all_to_all does not fit together: how much it sends to each rank and "
        "takes from each (the splits), and its tensors.",
        "Tell each other how much comes in every step, by an all_to_all of these numbers first, "
        "and make the output and both lists of splits from them.",
    ),
    Pattern(
        Kind.EXCEPTION,
        r"\bFunction (?P<name>\w+Backward\d+) returned an invalid gradient at index \d+ - got \[",
        "A tensor has another shape in the backward pass than it had in the forward one (in "
        "{name}): most often a loss uses parameters of a sharded model outside of the model, where "
        "a rank has only its part of them.",
        "Compute such a penalty in a method of the model, and register that with "
        "tr.register_fsdp_forward_method(model, 'penalty'). Else look for code that sets a "
        "tensor's .data between the two passes.",
    ),
    Pattern(
        Kind.MISSING,
        r"Expected to have finished reduction in the prior iteration",
        "Some of its parameters were unused in the step before: they got no gradient, so that its "
        "part in the exchange of gradients of that backward pass was missing, in which the other "
        "ranks waited.",
        "All ranks must use the same parameters in each step, or DistributedDataParallel must look "
        "for unused ones (find_unused_parameters=True); TORCH_DISTRIBUTED_DEBUG=DETAIL names them.",
    ),
    Pattern(
        Kind.MISMATCH,
        r"\b(?:[Rr]anks|[Pp]rocesses|[Ww]orkers)\b.{0,40}\b(?:disagree|differ|have different|"
        r"(?:save|use|are at|got|see) different|(?:do not|don't) (?:agree|match))|"
        r"\b(?:differs?|disagrees?|inconsistent|(?:not|n't) (?:the same|equal|identical)|"
        r"mismatch\w*|(?:another|different) \w+)\b.{0,40}\b"
        r"(?:across|between|among|on all|on rank \d+ than on|from (?:that|those) (?:of|on)|from)\b"
        r".{0,20}\b(?:ranks?|processes|workers)\b",
        "Ranks have different values of something that must be equal on all.",
        "The error says what. Let all ranks make it from the same values (a seed, a broadcast from "
        "rank 0, the mean over all ranks), or keep each rank's own apart.",
    ),
    Pattern(
        Kind.USAGE,
        r"^(?:\w+\.)*CheckpointError: ",
        "A checkpoint or a commit could not be kept, or does not fit what should load it.",
        "The error says which and why. Another model, optimizer or set of names than the saved one "
        "does not fit; each job needs its own directory.",
    ),
    Pattern(
        Kind.USAGE,
        r"^(?:\w+\.)*ConfigError: ",
        "Its arguments or its environment are invalid.",
        "The error says which, and what they may be; variables that are set by hand override what "
        "torshrun would set.",
    ),
    *GPU_FALLBACKS,
)
