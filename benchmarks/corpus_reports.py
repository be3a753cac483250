"""Translates a launcher's report of a failed job into the corpus' words: whose fault, which kind.

It has no side effects.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.corpus_runs import Run, Said
from benchmarks.launchers import TORSHRUN

CERTAIN, LIKELY, UNDECIDED = "certain", "likely", "undecided"

KINDS: Mapping[str, str] = {
    "hung": "stuck",
    "stopped by torshrun": "",
    "out of memory": "memory",
    "crashed": "crash",
    "killed by a signal": "signal",
    "peer lost": "",
    "GPU out of memory": "memory",
    "GPU failed": "agent",
    "GPU program failed": "exception",
    "allocation refused": "memory",
    "import failed": "import",
    "syntax error": "syntax",
    "file missing": "file",
    "wrong arguments": "usage",
    "address in use": "port",
    "disk full": "disk",
    "permission denied": "permission",
    "exception": "exception",
    "exit code": "exit_code",
    "early exit": "early_exit",
    "file damaged": "file",
    "node lost": "agent",
    "node unreachable": "network",
    "shared memory full": "memory",
}
"""torshrun's words for kinds, with the corpus' words for each. A missing word is used as it is."""

_BAD_USAGE = 2
_OUTCOMES = {"failed": "missing", "stopped": "signal", "preempted": "signal", "lost": "agent"}
_SIGNALS = {
    "crash": ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGSYS"],
    "signal": ["SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"],
    "limit": ["SIGXCPU", "SIGXFSZ"],
}
_ERRORS = {
    "memory": r"\b(?:_?Array)?MemoryError\b|Cannot allocate memory|bad_alloc",
    "import": r"\b(?:ImportError|ModuleNotFoundError)\b",
    "syntax": r"\b(?:SyntaxError|IndentationError|TabError)\b",
    "encoding": r"\bUnicode\w*Error\b",
    "disk": r"No space left on device|Disk quota exceeded",
    "limit": r"Too many open files|File too large|can't start new thread|Resource temporarily",
    "port": r"\bEADDRINUSE\b|[Aa]ddress already in use",
    "file": r"\bFileNotFoundError\b|No such file or directory",
    "permission": r"\bPermissionError\b|Permission denied",
    "network": r"Connection refused|No route to host|Network is unreachable",
}
"""Patterns of errors of Python and the system, for launchers that print no kinds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Holds one launcher's statements about one job."""

    text: str
    """The launcher's own text, without its quotations of workers."""
    certainty: str = ""
    """CERTAIN, LIKELY or UNDECIDED; "" if it names no cause."""
    ranks: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()
    kinds: frozenset[str] = frozenset()
    """Kinds in the corpus' words."""

    def __str__(self) -> str:
        if not self.certainty:
            return "says nothing"
        who = [f"rank {rank}" for rank in sorted(self.ranks)]
        who += [f"node {node}" for node in sorted(self.nodes)]
        return f"{', '.join(who) or 'nobody'}: {'/'.join(sorted(self.kinds)) or '?'}"


def finding(launcher: str, run: Run) -> Finding:
    """Return what this launcher says about this job."""
    return _torshrun(run) if launcher == TORSHRUN else _torchrun(run)


# ---- torshrun


def _torshrun(run: Run) -> Finding:
    text = "\n".join(own_lines(node.stderr) for node in run.nodes)
    causes = _events(run, "root_cause")
    if causes:
        return _of_cause(text, min(causes, key=lambda cause: _rank_of(cause["certainty"])))
    failed = _events(run, "worker_failed")
    if failed:
        return _of_worker(text, min(failed, key=lambda event: not KINDS.get(event["kind"], "?")))
    if any(node.code == _BAD_USAGE for node in run.nodes):
        return Finding(text, CERTAIN, kinds=frozenset(["usage"]))
    outcome = _outcome(run)
    return Finding(text, LIKELY, kinds=_words(outcome)) if outcome else Finding(text)


def own_lines(stderr: str) -> str:
    """Return torshrun's own lines, without those of workers, quoted or not."""
    lines, ours = [], False
    for line in stderr.splitlines():
        ours = line.startswith("torshrun: ") or (ours and line.startswith("  "))
        if ours and not line.startswith("  | "):
            lines.append(line)
    return "\n".join(lines)


def _events(run: Run, name: str) -> list[Mapping[str, Any]]:
    """Return the events of this name of each node's last round that has any."""
    found = []
    for node in run.nodes:
        named = [event for event in node.events if event["event"] == name]
        found += [event for event in named if event["round"] == named[-1]["round"]]
    return found


def _rank_of(certainty: str) -> int:
    return (CERTAIN, LIKELY, UNDECIDED).index(certainty)


def _of_cause(text: str, cause: Mapping[str, Any]) -> Finding:
    ranks, nodes = frozenset(cause["ranks"]), frozenset(cause.get("nodes", ()))
    return Finding(text, cause["certainty"], ranks, nodes, _words(cause["kind"]))


def _of_worker(text: str, event: Mapping[str, Any]) -> Finding:
    """Return the finding of a report without a root cause.

    It names one rank, and others that failed in the same way.
    """
    alike = re.findall(r"\branks? ([\d, -]+) in the same way", text)
    ranks = {event["rank"], *(rank for ranks in alike for rank in _listed(ranks))}
    certainty = CERTAIN if KINDS.get(event["kind"], "?") else LIKELY
    return Finding(text, certainty, frozenset(ranks), frozenset(), _words(event["kind"]))


def _listed(text: str) -> Iterable[int]:
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def _outcome(run: Run) -> str:
    """Return the reason why the job ended if no worker failed."""
    ends = [event["outcome"] for event in _events(run, "job_finished")]
    found = [outcome for outcome in ends if outcome != "succeeded"]
    return _OUTCOMES.get(found[0], "") if found else ""


def _words(kind: str) -> frozenset[str]:
    return frozenset(KINDS.get(kind, kind).split())


# ---- torchrun

_CAUSE = re.compile(r"^Root Cause \(first observed failure\):\n(.*?)^=+$", re.M | re.S)
_FIELD = re.compile(r"^  (time|rank|exitcode) +: (.*)$", re.M)
_TRACE = re.compile(r"^  traceback : (.*)", re.M | re.S)
_LOGGED = re.compile(r"^\[?[WE]\d{4} [\d:.]+.*torch/distributed/(?:elastic|run|launcher|argparse)")
_USAGE = re.compile(r"^usage: |: error: ", re.M)


def _torchrun(run: Run) -> Finding:
    blocks = [block for node in run.nodes for block in _CAUSE.findall(node.stderr)]
    said = "\n".join(line for node in run.nodes for line in _logged(node))
    if not blocks:
        return _without_block(run, said)
    block = min(blocks, key=lambda block: dict(_FIELD.findall(block)).get("time", ""))
    fields = dict(_FIELD.findall(block))
    rank, code = (int(fields[name].split()[0]) for name in ("rank", "exitcode"))
    trace = "".join(_TRACE.findall(block))
    own = block if "received by PID" in trace else block.replace(trace, "")
    text = f"{said}\nrank {rank}\n{own}"
    return Finding(text, CERTAIN, frozenset([rank]), frozenset(), _kinds_of(code, trace))


def _without_block(run: Run, said: str) -> Finding:
    usage = [node.stderr for node in run.nodes if node.code and _USAGE.search(node.stderr)]
    if usage:
        return Finding(usage[0], CERTAIN, kinds=frozenset(["usage"]))
    ends = [_last_error(node.stderr) for node in run.nodes if node.code]
    if not any(ends):
        return Finding(said)
    kinds = frozenset(kind for end in ends for kind in _kinds_of(1, end))
    return Finding("\n".join([said, *ends]), CERTAIN, kinds=kinds)


def _logged(node: Said) -> Sequence[str]:
    return [line for line in node.stderr.splitlines() if _LOGGED.match(line)]


def _last_error(stderr: str) -> str:
    """Return the last line of torchrun's own error, after a traceback through torch, or ""."""
    trace = stderr.rpartition("Traceback (most recent call last):")[2]
    return stderr.rstrip().splitlines()[-1] if "torch/distributed/run.py" in trace else ""


def _kinds_of(code: int, trace: str) -> frozenset[str]:
    """Return the kinds that an exit code, or else an exception, implies."""
    if code < 0:
        name = signal.Signals(-code).name
        return frozenset(kind for kind, names in _SIGNALS.items() if name in names)
    found = [kind for kind, pattern in _ERRORS.items() if re.search(pattern, trace)]
    if not found and "received by PID" in trace:
        found = [kind for kind, names in _SIGNALS.items() if any(n in trace for n in names)]
    if not found and re.search(r"^ *\w*(?:Error|Exception)\b", trace, re.M):
        found = ["exception"]
    return frozenset(found or ["exit_code"])
