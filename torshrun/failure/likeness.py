"""Tells which failures are alike, of one rank after another and of several. Pure."""

from __future__ import annotations

import hashlib
import re
import signal
from pathlib import PurePath

from torshrun.failure.exits import Exit
from torshrun.failure.last_words import last_words
from torshrun.failure.tracebacks import Words

_SAID_CHARS = 1000
_MASKS = (
    (re.compile(r"(?:/var)?/tmp/[^\s'\"]*"), "<path>"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<n>"),
    (re.compile(r"\b(?=[0-9a-f-]*\d)[0-9a-f-]{8,}\b"), "<n>"),
    (re.compile(r"\d+(?:\.\d+)?"), "<n>"),
)


def fingerprint(exit_: Exit) -> str:
    """Return what stays equal when it happens again: manner, error without numbers, frame."""
    words = last_words(exit_)
    spoken = [line for line in words.lines if line.strip()]
    said = (words.errors or spoken or [""])[-1].split("\n")[0].strip()
    manner = f"hung: {exit_.hung}" if exit_.hung else str(exit_.status)
    said = said[:_SAID_CHARS]  # the masks take more than linear time
    for pattern, mask in _MASKS:
        said = pattern.sub(mask, said)
    return f"{manner}|{said}|{_line(words.frame)}"


def _line(frame: str) -> str:
    path, _, line = frame.rpartition(":")
    return f"{PurePath(path).name}:{line}"


def likeness(exit_: Exit, words: Words) -> str:
    """Return a hash that is equal for ranks that failed alike: with the same exception at the same
    place, or in the same manner with the same words.
    """
    if words.errors and words.frame and (exit_.raised or not exit_.signo):
        like = f"{words.errors[-1].partition(':')[0][:_SAID_CHARS]}|{_line(words.frame)}"
    else:
        like = fingerprint(exit_)
    if exit_.oom and exit_.signo == signal.SIGKILL:
        like = "out of memory"
    return hashlib.blake2b(like.encode(errors="replace"), digest_size=8).hexdigest()
