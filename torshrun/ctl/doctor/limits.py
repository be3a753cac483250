"""Examines the resource limits (ulimit) of descriptors, locked memory, processes and core files."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass

from torshrun.ctl.doctor.finding import Finding, note, ok, warning
from torshrun.text import size

NO_LIMIT = -1
_FEW_FILES, _FEW_PROCESSES = 4096, 4096
_LITTLE_LOCKED = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Holds the soft and hard limit of each resource. NO_LIMIT is none."""

    nofile: tuple[int, int]
    memlock: tuple[int, int]
    nproc: tuple[int, int]
    core: tuple[int, int]


def gather() -> Limits:
    names = (
        resource.RLIMIT_NOFILE,
        resource.RLIMIT_MEMLOCK,
        resource.RLIMIT_NPROC,
        resource.RLIMIT_CORE,
    )
    return Limits(*map(resource.getrlimit, names))


def check(facts: Limits) -> Iterator[Finding]:
    yield _files(*facts.nofile)
    yield _locked(*facts.memlock)
    yield _processes(*facts.nproc)
    soft = facts.core[0]
    yield ok("core files (-c)", "unlimited" if soft == NO_LIMIT else size(soft) if soft else "none")


def _files(soft: int, hard: int) -> Finding:
    what, value = "open files (-n)", f"{_number(soft)}, at most {_number(hard)}"
    if 0 <= soft < _FEW_FILES:
        if 0 <= hard < _FEW_FILES:
            return warning(
                what,
                value,
                "Too few for jobs of many ranks: raise the hard limit (limits.conf, LimitNOFILE= "
                "of the scheduler's service, docker --ulimit nofile=65536).",
            )
        return note(
            what,
            value,
            "torshrun raises it to what is allowed; if many ranks are started otherwise, raise "
            "ulimit -n before.",
        )
    return ok(what, value)


def _locked(soft: int, hard: int) -> Finding:
    told = [size(each) if each >= 0 else "unlimited" for each in (soft, hard)]
    what, value = "locked memory (-l)", f"{told[0]}, at most {told[1]}"
    if 0 <= soft < _LITTLE_LOCKED:
        return note(
            what,
            value,
            "torshrun locks none; InfiniBand and pinned buffers of GPUs do: ulimit -l unlimited "
            "there (limits.conf, docker --ulimit memlock=-1).",
        )
    return ok(what, value)


def _processes(soft: int, hard: int) -> Finding:
    what, value = "processes (-u)", f"{_number(soft)}, at most {_number(hard)}"
    if 0 <= soft < _FEW_PROCESSES:
        return note(
            what,
            value,
            "The threads of all of this user's processes count: raise ulimit -u before large jobs, "
            "or use fewer threads (OMP_NUM_THREADS).",
        )
    return ok(what, value)


def _number(limit: int) -> str:
    return "unlimited" if limit == NO_LIMIT else str(limit)
