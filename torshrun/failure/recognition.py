"""Recognizes kinds of failure by the words that workers wrote. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePath

from torshrun.failure.error_patterns import DAMAGED, PATTERNS
from torshrun.failure.kinds import Diagnosis, Kind

SEARCHED_CHARS = 8192
"""Characters of each text that are looked at: patterns may take more than linear time."""


_CHILD = re.compile(
    r"worker \(pid.*\d\) (?:is killed by signal: (?P<signal>[A-Z][a-z]+(?: [a-z]+)*)|exited)|"
    r"died with <Signals\.(?P<name>SIG[A-Z]+)|(?P<code>SIG[A-Z]+)\(-\d+\)|"
    r"(?:exit(?:ed)?|returned).*(?:code|status):? (?P<number>-\d{1,9}|1[2-9]\d)\b|"
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
"""Signals by the names that strsignal(3) gives them."""
_CRASH = re.compile(
    r"[Ss]egmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception"
)
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")


def diagnose_words(said: Iterable[str], program: str) -> Diagnosis | None:
    """Return what these texts show; the first that shows anything counts. None if none does.

    `program` is the path of what wrote them.
    """
    texts = [text[:SEARCHED_CHARS] for text in said]
    readings = filter(None, (_by_pattern(text, program) for text in texts))
    return next(readings, None) or diagnose_child_words("\n".join(reversed(texts)))


def diagnose_frames(errors: Sequence[str], lines: Sequence[str]) -> Diagnosis | None:
    """Return what is shown by where exceptions were raised whose words say nothing.

    `lines` are those of their tracebacks. It is a damaged file if they were raised in a library
    that reads files or, for sizes that do not fit, in a line that reads one.
    """
    heads = [number for number, line in enumerate(lines) if line.endswith(_HEADER)]
    parts = [lines[start:end] for start, end in pairwise([*heads, len(lines)])]
    for number, (error, part) in enumerate(zip(reversed(errors), reversed(parts), strict=False)):
        place, source = _innermost(part)
        is_of_size = _SIZES.search(error)
        is_read = _READERS.search(place) and not _WRITES.search(f"{place}\n{source}")
        if is_read and (is_of_size or not (number or _OF_NO_DAMAGE.search(error))):
            return Diagnosis(Kind.DAMAGED_FILE, *DAMAGED)
        if is_of_size and _READS.search(source):
            return Diagnosis(Kind.DAMAGED_FILE, *DAMAGED)
    return None


def _innermost(lines: Sequence[str]) -> tuple[str, str]:
    """Return the line of the innermost frame of a traceback, and the source at that place."""
    found = [n for n, line in enumerate(lines) if line.lstrip(" |").startswith('File "')]
    if not found:
        return "", ""
    return lines[found[-1]], next(iter(lines[found[-1] + 1 :]), "")


_HEADER = "Traceback (most recent call last):"
_READERS = re.compile(
    r'/numpy/lib/_?(?:format\w*\.py"|npyio\w*\.py", line \d+, in load\b)|'
    r'/torch/serialization\.py"|/safetensors/|'
    r'/(?:zipfile|gzip|tarfile|lzma|bz2|pickle|_compression)(?:/\w+)?\.py"'
)
"""Code that reads files which hold arrays, models and archives."""
_WRITES = re.compile(r"\bin _?(?:save|write|dump)|Writer\b")
_OF_NO_DAMAGE = re.compile(
    r"^(?:\w+\.)*(?:KeyError|AttributeError|TypeError|NameError|NotImplementedError|PicklingError)\b|"
    r"allow_pickle=False|pickled \(object\) data|deserialize object on|\bmode\b"
)
"""Matches errors about what a whole file does not contain, or about how to read it."""
_SIZES = re.compile(r"cannot reshape array of size \d+|buffer is smaller than requested size")
"""Matches errors about the size of an array that was read from a file, or of any other."""
_READS = re.compile(r"\b(?:fromfile|memmap|load|loadtxt|open)\(|\.(?:read|read_bytes)\(")


def _by_pattern(said: str, program: str) -> Diagnosis | None:
    for kind, pattern, why, advice in PATTERNS:
        found = re.search(pattern, said, re.MULTILINE)
        if found:
            groups = {name: text or "" for name, text in found.groupdict().items()}
            name = groups.get("name") or next(filter(None, groups.values()), "")
            is_python = PurePath(program).name.startswith(("python", "pypy"))
            told = {
                **groups,
                "program": program if is_python else "The Python it ran in",
                "name": f"'{name}'" if name else _UNNAMED.get(kind, "what it needs"),
            }
            return Diagnosis(kind, why.format(**told), advice)
    return None


_UNNAMED = {
    Kind.ADDRESS_IN_USE: "A port",
    Kind.NO_FILE: "see its words",
    Kind.ENCODING: "see its words",
    Kind.NETWORK: "the server",
}


def diagnose_child_words(said: str) -> Diagnosis | None:
    """Return what words about the end of a worker's child process show; None if there are none."""
    found = _CHILD.search(said)
    if not found:
        return None
    name = _NAMES.get(found["signal"] or "") or found["name"] or found["code"] or ""
    number = abs(int(found["number"] or 0)) % 128
    if number in _NUMBERS:
        name = _NUMBERS[number]
    return diagnose_child_death(name)


def diagnose_child_death(name: str) -> Diagnosis:
    """Describe a child process of a worker that the signal `name` ended; "" is unknown."""
    who = "A process that it had started (a worker process of a DataLoader or of a pool)"
    how = f"was ended by {name}" if name else "died: a signal killed it, or it ended by itself"
    kind = Kind.CRASHED if name in _CRASHES else Kind.KILLED if name else Kind.EXCEPTION
    more = " in compiled code" if name in _CRASHES else ""
    return Diagnosis(
        kind,
        f"{who} {how}{more}.",
        "Its own output comes before; with num_workers=0 the failure shows in the rank itself.",
    )


def crash_signal_in(text: str) -> str:
    """Return the name of the signal of a crash that these words mention; "" if there is none."""
    found = _CRASH.search(text)
    return _NAMES[found[0].capitalize()] if found else ""


_NUMBERS = {11: "SIGSEGV", 7: "SIGBUS", 6: "SIGABRT", 4: "SIGILL", 8: "SIGFPE", 9: "SIGKILL"}


def diagnose_job(reason: str, kind: Kind) -> Diagnosis:
    """Describe a job that ended for a reason that is no worker's; its words may tell the kind."""
    known = diagnose_words([reason], "")
    advice = known.advice if known else _OF_JOBS.get(kind, "")
    return Diagnosis(known.kind if known else kind, reason, advice)


_OF_JOBS = {
    Kind.MISSING: "See whether torshrun was started on all nodes, with the same --rdzv-endpoint, "
    "--rdzv-id and --nnodes, and whether they reach that endpoint; torshctl doctor examines it.",
    Kind.STORE: "See whether what serves the job's store lives (etcd, or the agent whose host the "
    "endpoint names), and whether it is reached from here; torshctl doctor examines it.",
    Kind.AGENT: "See who or what stopped or killed it: the kernel's log (dmesg), the scheduler, "
    "who else is on the machine.",
}
