"""Which worker's end explains the others, of what kind it was, and the report about it. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import PurePath

from torshrun.failure.exits import Exit, OomEvidence, how
from torshrun.failure.last_words import CRASHES, Words, last_words
from torshrun.signals import signal_name
from torshrun.text import format_ranks, size


class Kind(StrEnum):
    """What sort of failure it was, as far as that can be told from outside."""

    HUNG = "hung"
    STOPPED = "stopped by torshrun"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    KILLED = "killed by a signal"
    PEER_LOST = "peer lost"
    GPU_MEMORY = "GPU out of memory"
    ALLOCATION = "allocation refused"
    IMPORT = "import failed"
    SYNTAX = "syntax error"
    NO_FILE = "file missing"
    USAGE = "wrong arguments"
    ADDRESS_IN_USE = "address in use"
    DISK_FULL = "disk full"
    PERMISSION = "permission denied"
    EXCEPTION = "exception"
    EXIT_CODE = "exit code"


SHOWN_LINES = 40
"""How many lines of a worker's last words the report shows."""
LINE_CHARS = 500
"""How much of each it shows."""
_GROUPS = 6
_LAST = 5  # lines of stderr that count where there is no traceback
_SURELY_FOLLOWS = re.compile(r"^torsh_runtime\.errors\.(?:PeerLost|CommAborted|CommTimeout)\b")
_MAY_FOLLOW = re.compile(  # what Gloo, NCCL and sockets say
    r"[Cc]onnection (?:was )?(?:closed|reset) by peer|Broken pipe|"
    r"remote process exited or there was a network error|failed to recv, got 0 bytes"
)
_LOST_CHILD = re.compile(
    r"killed by signal: Killed|terminated abruptly|SIGKILL|\bexit(?:ed with)? code:? (?:-9|137)\b"
)

_PATTERNS = (
    (
        Kind.GPU_MEMORY,
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
        r"cupy\S*\.OutOfMemoryError|HIP out of memory",
        "The GPU's memory is used up: smaller batches, sharding or offloading need less; "
        "nvidia-smi shows who else uses it.",
    ),
    (
        Kind.ALLOCATION,
        r"^(?:\w+\.)*_?(?:Array)?MemoryError\b|Cannot allocate memory|std::bad_alloc",
        "The system refused it memory: look at the size asked for and at `ulimit -v`.",
    ),
    (
        Kind.IMPORT,
        r"\bNo module named '?(?P<name>[\w.]+)|"
        r"^ImportError: cannot import name '(?P<part>\w+)'|^ImportError: ",
        "{program} cannot import {name}: install it for that Python, or start torshrun with the "
        "one that has it.",
    ),
    (
        Kind.SYNTAX,
        r"^(?:SyntaxError|IndentationError|TabError): ",
        "{program} cannot read this as Python: a slip in the file, or it was written for another "
        "version.",
    ),
    (
        Kind.DISK_FULL,
        r"No space left on device|Disk quota exceeded",
        "A disk, or its quota, is full; df -h shows which.",
    ),
    (
        Kind.ADDRESS_IN_USE,
        r"Address already in use|EADDRINUSE",
        "Another process has the port: leave --master-port out, and torshrun picks a free one for "
        "each round; ss -ltnp names the holder.",
    ),
    (
        Kind.NO_FILE,
        r"can't open file |^FileNotFoundError: |: No such file or directory$",
        "Paths that do not begin with / count from the directory in which torshrun was started.",
    ),
    (
        Kind.PERMISSION,
        r"^PermissionError: |Permission denied$",
        "The user who started torshrun may not do that; look at the owner and mode of what it "
        "names.",
    ),
)
_LOST_PEER = "It lost a peer, but no worker here failed before it: look at other nodes' reports."
_USAGE = (
    "It refused its arguments. Options for torshrun stand before the script's name, options for "
    "the script after it."
)
_SIGNALS = {
    "SIGSEGV": "It touched memory that is not its own: a fault in compiled code, of a library or "
    "an extension module.",
    "SIGBUS": "The memory behind a mapped file was not there: often /dev/shm is full (df -h "
    "/dev/shm), or the file was cut short.",
    "SIGFPE": "Compiled code divided an integer by zero.",
    "SIGILL": "The processor does not know an instruction: a library was built for another kind.",
    "SIGABRT": "Compiled code gave up by itself; it usually says why just before.",
    "SIGKILL": "Nobody but the kernel or another process sends it, and no kill for want of memory "
    "was seen: ask the scheduler, the container's runtime or an administrator.",
    "SIGTERM": "Another process asked it to end, and not torshrun: ask the scheduler or whoever "
    "shares the machine.",
    "SIGINT": "Another process interrupted it, and not torshrun.",
    "SIGHUP": "Another process hung it up, and not torshrun.",
    "SIGXCPU": "It used up its processor time (`ulimit -t`).",
    "SIGXFSZ": "It wrote a file larger than allowed (`ulimit -f`).",
    "SIGSYS": "It made a system call that is forbidden here: a seccomp filter, of a container for "
    "instance.",
}
_UNSURE = " in all likelihood (it counts such kills for the whole machine only)"
_SAID_CHARS = 1000
_MASKS = (
    (re.compile(r"(?:/var)?/tmp/[^\s'\"]*"), "<path>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<n>"),
    (re.compile(r"\b(?=[0-9a-f-]*\d)[0-9a-f-]{8,}\b"), "<n>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)


def root_cause(exits: Sequence[Exit]) -> Exit | None:
    """The exit that explains the others; None if nothing failed. One that hung comes first, then
    those that had not been asked to stop; among them those that did not just lose a peer, in the
    order in which they ended, of which the times in error files, whole seconds, cannot tell more.
    """
    failed = [exit_ for exit_ in exits if exit_.failed]
    hung = [exit_ for exit_ in failed if exit_.hung]
    unasked = [exit_ for exit_ in failed if not exit_.stopped]
    return min(hung or unasked or failed, key=followed, default=None)


def followed(exit_: Exit) -> int:
    """Whether it failed only because another one had, by its own words: 1 is likely, 2 surely."""
    if exit_.signo and exit_.signo != signal.SIGABRT:
        return 0
    words = last_words(exit_)
    errors = words.lines if exit_.signo else words.errors  # before it aborts, a library says why
    if any(map(_SURELY_FOLLOWS.match, errors)):
        return 2
    return int(any(map(_MAY_FOLLOW.search, errors)))


def diagnose(exit_: Exit) -> tuple[Kind, str]:
    """What sort of failure it was, and what may help; "" if its own words say all there is."""
    if exit_.hung:
        return Kind.HUNG, exit_.hung
    words = last_words(exit_)
    said = "\n".join(words.errors[-1:] or words.lines[-_LAST:])
    if exit_.stopped:
        return Kind.STOPPED, ""
    if exit_.oom and (exit_.signo == 9 or exit_.code == 137 or _LOST_CHILD.search(said)):
        return Kind.OUT_OF_MEMORY, _out_of_memory(exit_, exit_.oom)
    if followed(exit_):
        return Kind.PEER_LOST, _LOST_PEER
    if exit_.signo:
        crashed = Kind.CRASHED if exit_.signo in CRASHES else Kind.KILLED
        return crashed, _SIGNALS.get(signal_name(exit_.signo), "")
    return _by_pattern(exit_, said) or _by_code(exit_, words)


def _by_pattern(exit_: Exit, said: str) -> tuple[Kind, str] | None:
    for kind, pattern, hint in _PATTERNS:
        found = re.search(pattern, said, re.MULTILINE)
        if found:
            names = [f"'{name}'" for name in found.groupdict().values() if name]
            is_python = PurePath(exit_.program).name.startswith(("python", "pypy"))
            program = exit_.program if is_python else "The Python it ran in"
            return kind, hint.format(program=program, name="".join(names) or "what it needs")
    return None


def _by_code(exit_: Exit, words: Words) -> tuple[Kind, str]:
    if exit_.code == 2 and any(line.lower().startswith("usage: ") for line in words.lines):
        return Kind.USAGE, _USAGE
    if words.errors:
        return Kind.EXCEPTION, ""
    name = signal_name(exit_.code - 128) if exit_.code > 128 else ""
    told = f"A shell gives that code when {name} killed what it ran." if name[:3] == "SIG" else ""
    return Kind.EXIT_CODE, told


def _out_of_memory(exit_: Exit, oom: OomEvidence) -> str:
    limit, where = "the whole machine's", ""
    if oom.cgroup:
        limit = f"cgroup limit {size(oom.limit)}" if oom.limit else "a cgroup's limit"
        where = f" in {oom.cgroup}"
    peak = f", its peak was {size(exit_.peak_rss_kib << 10)}" if exit_.peak_rss_kib else ""
    who = "it" if exit_.signo else "one of its processes"
    surely = "" if oom.ours else _UNSURE
    return f"The kernel killed {who}{surely}: out of memory ({limit}{where}{peak})."


def fingerprint(exit_: Exit) -> str:
    """What stays the same when it happens again: manner, error without numbers, frame."""
    words = last_words(exit_)
    spoken = [line for line in words.lines if line.strip()]
    said = (words.errors or spoken or [""])[-1].split("\n")[0].strip()
    manner = f"hung: {exit_.hung}" if exit_.hung else str(exit_.status)
    said = said[:_SAID_CHARS]  # the masks take more than linear time
    for pattern, mask in _MASKS:
        said = pattern.sub(mask, said)
    path, _, line = words.frame.rpartition(":")
    return f"{manner}|{said}|{PurePath(path).name}:{line}"


# ---- the report


def describe(exits: Sequence[Exit], outlook: str) -> str:
    """The report: root cause, its last words, the others in one line, and what happens next."""
    cause = root_cause(exits)
    if cause is None:
        return f"torshrun: {outlook}"
    where = f"host {cause.host}, pid {cause.pid}, after {cause.seconds:.1f} s"
    lines = [f"torshrun: rank {cause.rank} failed first: {how(cause)}, {where}"]
    _, explanation = diagnose(cause)
    if explanation:
        lines.append(f"  {explanation}")
    words = last_words(cause)
    lines.append(f"  {words.heading}:" if words.lines else "  it wrote nothing to stderr")
    lines += [f"  | {line[:LINE_CHARS]}".rstrip() for line in _cut(words)]
    if cause.log:
        lines.append(f"  its output is kept in {cause.log}")
    others = [exit_ for exit_ in exits if exit_ is not cause and exit_.failed]
    if others:
        lines.append(f"  after it: {_in_brief(others, fingerprint(cause))}")
    return "\n".join([*lines, f"  {outlook}"])


def _cut(words: Words) -> list[str]:
    """Lines that fit, without those that matter least: the outermost calls."""
    lines = list(words.lines)
    missing = len(lines) - SHOWN_LINES
    if missing <= 0:
        return lines
    note = f"  … {missing + 1} lines left out …"
    if words.innermost_first:
        return [*lines[: SHOWN_LINES - 1], note]
    return [lines[0], note, *lines[missing + 2 :]]


def _in_brief(exits: Iterable[Exit], cause: str) -> str:
    """How the others ended, those who ended alike together."""
    groups: dict[str, list[int]] = {}
    for exit_ in sorted(exits, key=lambda exit_: exit_.rank):
        groups.setdefault(_fate(exit_, cause), []).append(exit_.rank)
    told = [f"{format_ranks(ranks)} {fate}" for fate, ranks in list(groups.items())[:_GROUPS]]
    rest = sum(len(ranks) for ranks in list(groups.values())[_GROUPS:])
    return "; ".join([*told, f"{rest} others in other ways"] if rest else told)


def _fate(exit_: Exit, cause: str) -> str:
    if exit_.stopped:
        return "stopped by torshrun"
    if followed(exit_):
        return "lost its peer"
    return "in the same way" if fingerprint(exit_) == cause else how(exit_)
