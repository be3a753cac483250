"""By which words a worker shows what sort of failure its was. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import NamedTuple

from torshrun.failure.kinds import Kind, Reading

SEARCHED_CHARS = 8192
"""Characters of each text that are looked at: patterns may take more than linear time."""


class _Pattern(NamedTuple):
    kind: Kind
    words: str
    why: str
    advice: str
    """Both may speak of {name}, what the group of that name found, and of the {program}."""


USAGE = (
    "It refused its arguments.",
    "Options for torshrun stand before the script's name, options for the script after it.",
)
"""Why, and what to do."""
_IN_USE = (
    "{name} is taken: another process listens there, or one that ended has left it busy.",
    "`ss -ltnp` names the holder. Leave --master-port out and torshrun picks a free port for each "
    "round; a port of the script's own has to differ from rank to rank (add LOCAL_RANK to it).",
)
_DAMAGED = (
    "A file is damaged or cut short (truncated): it was not written to its end, or not copied "
    "whole.",
    "Compare its size and checksum with a good copy, and go back to an earlier checkpoint; write "
    "to another name first and rename the file once it is whole.",
)
_PATTERNS = (
    _Pattern(
        Kind.GPU_MEMORY,
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
        r"cupy\S*\.OutOfMemoryError|HIP out of memory|"
        r"(?:CUDNN|CUBLAS|cublas|cudnn)_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory",
        "The GPU's memory is used up.",
        "Smaller batches, sharding or offloading need less; nvidia-smi shows who else uses it.",
    ),
    _Pattern(
        Kind.SHARED_MEMORY,
        r"out of shared memory|unable to \w+.*(?:shared memory|</torch_)|"
        r"unable to write to file </|No space left.*shm|(?:shm|shared memory).*No space left|"
        r"killed by signal: Bus error",
        "/dev/shm, where processes share memory, is full or too small.",
        "`df -h /dev/shm` shows its size; give the container more (--shm-size, or a memory volume "
        "there), let DataLoaders have fewer workers, or set_sharing_strategy('file_system').",
    ),
    _Pattern(
        Kind.ALLOCATION,
        r"^(?:\w+\.)*_?(?:Array)?MemoryError\b|Cannot allocate memory|std::bad_alloc|"
        r"not enough memory: you tried to allocate|(?:failed to|[Cc]annot) allocate memory",
        "The system refused it memory: it asked for more than there is or than it may have.",
        "Look at the size asked for, at `ulimit -v` and at `free -m`; smaller pieces need less.",
    ),
    _Pattern(
        Kind.VERSION,
        r"version [`'](?P<name>GLIBC\w*_[\d.]+)' not found|"
        r"numpy\.dtype size changed|compiled using NumPy 1\.x cannot be run in|"
        r"\bcompiled (?:against|with|for).*version|was built (?:with|for|against).*version|"
        r"driver version is insufficient|no kernel image is available|"
        r"forward compatibility was attempted|undefined symbol: |unsupported pickle protocol|"
        r"\b(?:[Ii]ncompatible|[Uu]nsupported|[Dd]ifferent|[Mm]ismatched) (?:\w+ )?versions?\b|"
        r"\bversions? (?:mismatch|conflict|differ)|VersionConflict|DistributionNotFound|"
        r"\bversion \S+ (?:is required|or (?:newer|later|higher))|"
        r"\brequires (?:Python|python|torch|numpy|\w+ version)\b.*\d|"
        r"is required.*\bbut\b.*(?:found|installed|have)|bad magic number in '",
        "Two things do not fit together that are of different versions.",
        "Install versions on all nodes that fit: `pip check`, and compare `pip list` and "
        "`python --version` between the nodes and the environment that it was built for.",
    ),
    _Pattern(
        Kind.IMPORT,
        r"\bNo module named '?(?P<name>[\w.]+)|"
        r"^ImportError: (?:cannot import name '(?P<part>\w+)'|(?P<library>\S+\.so[\w.]*): |)|"
        r"(?P<object>\S+\.so[\w.]*): cannot open shared object file",
        "{program} cannot import {name}.",
        "Install it for that Python, or start torshrun with the one that has it (its environment "
        "active); a library has to be where the loader looks (LD_LIBRARY_PATH).",
    ),
    _Pattern(
        Kind.SYNTAX,
        r"^(?:SyntaxError|IndentationError|TabError): ",
        "{program} cannot read this as Python.",
        "It is a slip in that line, or the file was written for another version of Python.",
    ),
    _Pattern(
        Kind.ENCODING,
        r"^Unicode(?:De|En)?code?Error: '?(?P<name>[\w-]+)'? codec|^Unicode\w*Error: |"
        r"unsupported locale setting|invalid (?:continuation|start) byte|"
        r"codec can't (?:de|en)code",
        "The bytes are not text in the encoding that they are read or written as ({name}).",
        "Say which encoding a file has (open(…, encoding='utf-8')), have a UTF-8 locale "
        "(LC_ALL=C.UTF-8) or PYTHONUTF8=1 on all nodes, and look at that file's bytes.",
    ),
    _Pattern(
        Kind.LIMIT,
        r"Too many open files|\bEMFILE\b|\bENFILE\b",
        "It has as many open files (descriptors) as it may.",
        "Raise the limit (`ulimit -n`; nofile of the container or of limits.conf), or close what "
        "is not needed any more: DataLoaders, files, sockets.",
    ),
    _Pattern(
        Kind.LIMIT,
        r"can't start new thread|pthread_create\b.*failed|"
        r"[Rr]esource temporarily unavailable|unable to (?:create|start) .*thread|"
        r"\bBlockingIOError: \[Errno 11\]|Cannot fork|fork: retry",
        "The system gives it no further thread or process: the limit of processes is reached.",
        "Look at `ulimit -u` (nproc), at the pids limit of the container or cgroup (pids.max), and "
        "at who starts so many threads: OMP_NUM_THREADS and DataLoaders' workers count per rank.",
    ),
    _Pattern(
        Kind.LIMIT,
        r"File too large|\bEFBIG\b",
        "It wrote a file larger than allowed.",
        "Raise the limit of the file size (`ulimit -f`), or write smaller files; some file systems "
        "have a limit of their own.",
    ),
    _Pattern(
        Kind.LIMIT,
        r"Argument list too long|\bE2BIG\b|inotify.*(?:limit|No space)|"
        r"\blimit (?:of \S+ )?(?:reached|exceeded)|[Ee]xceeded? (?:the|its) \w* ?limit",
        "A limit of the system or of the service is reached.",
        "See which limit its words name (`ulimit -a`), and raise it or ask for less.",
    ),
    _Pattern(
        Kind.DISK_FULL,
        r"No space left on device|[Dd]isk quota exceeded|\bENOSPC\b|\bEDQUOT\b|"
        r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|disk (?:is )?full",
        "A disk, or a quota on it, is full.",
        "`df -h` and `df -i` show which (`quota -s` for quotas); remove old checkpoints and logs, "
        "or write where there is space.",
    ),
    _Pattern(
        Kind.DISK_FULL,
        r"Read-only file system|\bEROFS\b",
        "The file system is read-only.",
        "`mount | grep ' ro'` shows which; after an error of the disk the kernel mounts it "
        "read-only (dmesg), and containers may have volumes so. Write somewhere else.",
    ),
    _Pattern(
        Kind.ADDRESS_IN_USE,
        r"[Aa]ddress already in use.*?(?P<name>port[ :]+\d+)|"
        r"(?P<where>port: \d+).*EADDRINUSE|[Aa]ddress already in use|EADDRINUSE",
        *_IN_USE,
    ),
    _Pattern(
        Kind.CLOCK,
        r"certificate (?:is not yet valid|has expired)|[Cc]lock skew|RequestTimeTooSkewed|"
        r"(?:time|date|stamp|modified|issued|created)\b.*\bin the future|not yet valid|"
        r"ImmatureSignature|ExpiredSignature|token (?:is |has )?expired|clocks? (?:differ|drift)",
        "It goes by a time of day that does not fit: a clock is wrong, or something has expired.",
        "Compare `date` on the nodes, and let NTP or chrony set their clocks (`timedatectl`).",
    ),
    _Pattern(
        Kind.STORE,
        r"^(?:\w+\.)*(?:StoreError|StoreTimeout|DistStoreError|EtcdException): "
        r"(?!.*(?:refused|unreachable|No route|resolution|not known))|\betcdserver: |"
        r"failed to recv, got 0 bytes",
        "The store by which the ranks meet did not answer, or did not have what was asked for.",
        "It is rank 0's or the agents' (or etcd): see whether that process lives and is reached "
        "from here (MASTER_ADDR, MASTER_PORT; torshctl doctor).",
    ),
    _Pattern(
        Kind.NETWORK,
        r"Connection refused|No route to host|(?:Network|Host) is (?:unreachable|down)|"
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
    _Pattern(
        Kind.DAMAGED_FILE,
        r"PytorchStreamReader failed|invalid header or archive is corrupted|Ran out of input|"
        r"UnpicklingError|pickle data was truncated|BadZipFile|File is not a zip file|"
        r"not a gzipped file|CRC check failed|mmap an empty file|SafetensorError|"
        r"\b(?:file|checkpoint|archive|shard|data|header)\b.*\b(?:truncated|corrupt|damaged)|"
        r"\b(?:truncated|corrupt(?:ed)?|damaged)\b.*\b(?:file|checkpoint|archive|shard|data)\b|"
        r"checksum|cannot reshape array of size \d+ into shape|mmap length is greater than file|"
        r"buffer is smaller than requested size|unexpected end of (?:file|data)|"
        r"^EOFError: (?!EOF when reading a line)|^(?:\w+\.)*CheckpointError: |Cannot load file|"
        r"failed to interpret file",
        *_DAMAGED,
    ),
    _Pattern(
        Kind.NO_FILE,
        r"can't open file '(?P<path>[^'\n]+)|"
        r"^FileNotFoundError: .*?: '(?P<name>[^'\n]+)|^FileNotFoundError: |"
        r"No such file or directory|^(?:IsA|NotA)DirectoryError: ",
        "A file or directory is not where it is looked for: {name}.",
        "Paths that do not begin with / count from the directory in which torshrun was started; "
        "on several nodes the file has to be on each of them, or on a file system that all share.",
    ),
    _Pattern(
        Kind.PERMISSION,
        r"^PermissionError: |Permission denied|Operation not permitted|\bEACCES\b|\bEPERM\b",
        "The user who started torshrun may not do that.",
        "Look at the owner and mode of what it names (`ls -l`, `id`), and at what the container "
        "is permitted.",
    ),
    _Pattern(
        Kind.NAN,
        r"\b(?:nan|NaN|NAN|nans|NaNs)\b|\b[Nn]on-?finite\b|\b[Nn]ot finite\b|^FloatingPointError: |"
        r"\b(?:loss|gradient|norm)\w*\b.*\b(?:inf|infinite)\b",
        "A loss, gradient or weight is no finite number any more (NaN or infinite).",
        "Look at the batch and the learning rate of that step: a smaller rate or warm-up, clipped "
        "gradients and a checked input help; torch.autograd.set_detect_anomaly() names the "
        "operation.",
    ),
    _Pattern(
        Kind.USAGE,
        r"\bunrecognized arguments?: |\bthe following arguments are required: |No such option: ",
        *USAGE,
    ),
    _Pattern(
        Kind.USAGE,
        r"^(?:\w+\.)*ConfigError: ",
        "Its arguments or its environment are not as they must be.",
        "Its words say which, and what they may be; variables that are set by hand win over what "
        "torshrun would set.",
    ),
)
_CHILD = re.compile(
    r"worker \(pid.*\d\) (?:is killed by signal: (?P<signal>[A-Z][a-z]+(?: [a-z]+)*)|exited)|"
    r"died with <Signals\.(?P<name>SIG[A-Z]+)|(?P<code>SIG[A-Z]+)\(-\d+\)|"
    r"(?:exit(?:ed)?|returned).*(?:code|status):? (?P<number>-\d+|1[2-9]\d)\b|"
    r"terminated abruptly|worker process.*unexpectedly"
)
_NAMES = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Aborted": "SIGABRT",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Killed": "SIGKILL",
    "Terminated": "SIGTERM",
}
"""What strsignal(3) calls them."""
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")


def by_words(said: Iterable[str], program: str) -> Reading | None:
    """What these texts show, of which the first that shows anything counts; None if none does.
    `program` is the path of what said it.
    """
    texts = [text[:SEARCHED_CHARS] for text in said]
    readings = filter(None, (_by_pattern(text, program) for text in texts))
    return next(readings, None) or _by_child("\n".join(reversed(texts)))


def by_frame(frame: str) -> Reading | None:
    """What is shown by the innermost call of an exception whose words say nothing."""
    reads_file = _READERS.search(frame)
    return Reading(Kind.DAMAGED_FILE, *_DAMAGED) if reads_file else None


_READERS = re.compile(
    r"/numpy/lib/_?(?:format|npyio)\w*\.py:|/torch/serialization\.py:|/safetensors/|"
    r"/(?:zipfile|gzip|tarfile|lzma|bz2|pickle)(?:/\w+)?\.py:"
)
"""Code that reads files which hold arrays, models and archives."""


def _by_pattern(said: str, program: str) -> Reading | None:
    for kind, pattern, why, advice in _PATTERNS:
        found = re.search(pattern, said, re.MULTILINE)
        if found:
            names = [name for name in found.groupdict().values() if name]
            is_python = PurePath(program).name.startswith(("python", "pypy"))
            told = {
                "program": program if is_python else "The Python it ran in",
                "name": f"'{names[0]}'" if names else _UNNAMED.get(kind, "what it needs"),
            }
            return Reading(kind, why.format(**told), advice)
    return None


_UNNAMED = {
    Kind.ADDRESS_IN_USE: "A port",
    Kind.NO_FILE: "see its words",
    Kind.ENCODING: "see its words",
}


def _by_child(said: str) -> Reading | None:
    """A process that the worker had started has died, and the worker of that."""
    found = _CHILD.search(said)
    if not found:
        return None
    name = _NAMES.get(found["signal"] or "") or found["name"] or found["code"] or ""
    number = abs(int(found["number"] or 0)) % 128
    if number in _NUMBERS:
        name = _NUMBERS[number]
    who = "A process that it had started (a worker process of a DataLoader or of a pool)"
    how = f"was ended by {name}" if name else "died: a signal killed it, or it ended by itself"
    kind = Kind.CRASHED if name in _CRASHES else Kind.KILLED if name else Kind.EXCEPTION
    more = " in compiled code" if name in _CRASHES else ""
    return Reading(
        kind,
        f"{who} {how}{more}.",
        "Its own words come before; with num_workers=0 what fails shows in the rank itself.",
    )


_NUMBERS = {11: "SIGSEGV", 7: "SIGBUS", 6: "SIGABRT", 4: "SIGILL", 8: "SIGFPE", 9: "SIGKILL"}


def of_job(reason: str, kind: Kind) -> Reading:
    """What is to be said of a job that ended for a reason that is no worker's; its words may tell
    more of the kind.
    """
    known = by_words([reason], "")
    advice = known.advice if known else _OF_JOBS.get(kind, "")
    return Reading(known.kind if known else kind, reason, advice)


_OF_JOBS = {
    Kind.MISSING: "See whether torshrun was started on all nodes, with the same --rdzv-endpoint, "
    "--rdzv-id and --nnodes, and whether they reach that endpoint; torshctl doctor examines it.",
    Kind.STORE: "See whether what serves the job's store lives (etcd, or the agent whose host the "
    "endpoint names), and whether it is reached from here; torshctl doctor examines it.",
    Kind.AGENT: "See who or what stopped or killed it: the kernel's log (dmesg), the scheduler, "
    "who else is on the machine.",
}
