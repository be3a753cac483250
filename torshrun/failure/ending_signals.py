"""Holds what each signal that ends a worker shows, and what to do about it."""

from __future__ import annotations

from torshrun.failure.kinds import Kind

_NOTICE = (
    "It was sent this signal, which is a notice (of a scheduler, before the time limit), and does "
    "not handle it.",
    "Handle it (signal.signal) and save there what must be kept; or let the scheduler send it to "
    "torshrun instead of the workers.",
)
SIGNALS: dict[str, tuple[Kind, str, str]] = {
    "SIGSEGV": (
        Kind.CRASHED,
        "It accessed memory that is not its own: a fault in compiled code of a library or an "
        "extension module.",
        "See which call its stack ends in, and update or rebuild that library; a very deep "
        "recursion overflows the stack (`ulimit -s`).",
    ),
    "SIGBUS": (
        Kind.CRASHED,
        "The memory behind a mapped file was not there: often /dev/shm is full, or the file was "
        "cut short.",
        "`df -h /dev/shm` shows whether it is (--shm-size gives a container more); a mapped file "
        "must not be truncated or rewritten meanwhile.",
    ),
    "SIGFPE": (
        Kind.CRASHED,
        "Compiled code divided an integer by zero.",
        "See which call its stack ends in.",
    ),
    "SIGILL": (
        Kind.CRASHED,
        "The processor does not know an instruction: a library was built for another kind.",
        "Install or build that library for this processor (`lscpu` tells which it is).",
    ),
    "SIGABRT": (
        Kind.CRASHED,
        "Compiled code aborted; it usually says why just before.",
        "See which library its words and its stack name: a failed check, or damaged memory.",
    ),
    "SIGSYS": (
        Kind.CRASHED,
        "It made a system call that is forbidden here: by a seccomp filter, for example of a "
        "container.",
        "Run it without that filter, or with one that permits the call (dmesg names it).",
    ),
    "SIGKILL": (
        Kind.KILLED,
        "Only the kernel or another process sends it, and no kill for lack of memory was seen.",
        "Ask the scheduler, the container's runtime or an administrator who killed it (dmesg).",
    ),
    "SIGTERM": (
        Kind.KILLED,
        "Another process asked it to end, not torshrun.",
        "Ask the scheduler or whoever shares the machine.",
    ),
    "SIGXCPU": (
        Kind.LIMIT,
        "It used up its processor time.",
        "Raise the limit (`ulimit -t`), or run it where there is none: login nodes often have one.",
    ),
    "SIGXFSZ": (
        Kind.LIMIT,
        "It wrote a file larger than allowed.",
        "Raise the limit of the file size (`ulimit -f`), or write smaller files.",
    ),
    "SIGUSR1": (Kind.KILLED, *_NOTICE),
    "SIGUSR2": (Kind.KILLED, *_NOTICE),
    "SIGPIPE": (
        Kind.KILLED,
        "It wrote to a pipe or a connection that no process reads any more.",
        "See which program it wrote to, and why that has ended.",
    ),
    "SIGALRM": (
        Kind.KILLED,
        "A timer of its own ran out (alarm(), setitimer()), and nothing handled the signal.",
        "See who sets it: a watchdog of a library, `timeout -s ALRM`.",
    ),
    "SIGINT": (Kind.KILLED, "Another process interrupted it, not torshrun.", ""),
    "SIGHUP": (Kind.KILLED, "Another process sent it a hang-up, not torshrun.", ""),
}
