"""Examines the versions of Python, torshrun and the libraries of jobs, and whether they load."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from torshrun.ctl.doctor import probes
from torshrun.ctl.doctor.deadlines import all_within
from torshrun.ctl.doctor.finding import Finding, note, ok, problem
from torshrun.ctl.doctor.probes import Probed
from torshrun.procfs import ROOT, read_text

CORE = "native core"
_CORE = """
import ast, pathlib
from torsh_runtime.backends.native import compiled
core = compiled._native
stub = pathlib.Path(compiled.__file__).with_name("_native.pyi")
wanted = set()
for node in ast.parse(stub.read_text() if stub.exists() else "").body:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        wanted.add(node.name)
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(part, ast.FunctionDef):
            wanted.add(f"{node.name}.{part.name}")
def has(name):
    part = core
    for word in name.split("."):
        part = getattr(part, word, None)
    return part is not None
report(missing=sorted(name for name in wanted if not has(name)))
"""
_VERSION = "import {0}\nreport(version=str({0}.__version__))"
_TORCH = """
import torch
gpus = torch.cuda.device_count() if torch.version.cuda else 0
nccl = ".".join(map(str, torch.cuda.nccl.version())) if gpus else ""
report(version=torch.__version__, cuda=torch.version.cuda or "", gpus=gpus, nccl=nccl)
"""
_LOADED = {
    CORE: _CORE,
    "numpy": _VERSION.format("numpy"),
    "torch": _TORCH,
    "cupy": _VERSION.format("cupy"),
    "mpi4py": "import mpi4py\nfrom mpi4py import MPI\n"
    "report(version=mpi4py.__version__, library=MPI.Get_library_version().split(chr(0))[0])",
}
"""Code that loads a library in a process of its own, and reports its version."""
_LISTED = {
    "CUDA runtime": r"nvidia-cuda-runtime(-cu\d+)?",
    "NCCL": r"nvidia-nccl-cu\d+",
    "nccl4py": "nccl4py",
}
"""Patterns of distributions whose installed versions are only looked up."""


@dataclass(frozen=True, slots=True)
class Versions:
    python: str
    installed: Mapping[str, str]
    """The version of each installed distribution, by normalized name."""
    driver: str
    """The version of the NVIDIA driver in the kernel. Empty if none is loaded."""
    mpiexec: Probed | None
    """The output of mpiexec --version, or None if there is none."""
    loaded: Mapping[str, Probed | None]
    """The outcome of loading each library. None is not installed."""


def gather(seconds: float, root: Path = ROOT) -> Versions:
    """Run all probes at once, with `seconds` for each."""
    wanted = {name: code for name, code in _LOADED.items() if _is_there(name)}
    calls = {name: partial(probes.python, code, seconds) for name, code in wanted.items()}
    mpiexec = shutil.which("mpiexec")
    if mpiexec:
        version = partial(probes.program, [mpiexec, "--version"], seconds, every_line=True)
        calls["mpiexec"] = version
    found = {
        name: Probed("hung", str(probed)) if isinstance(probed, Exception) else probed
        for name, probed in all_within(seconds + 5.0, calls).items()
    }
    module = read_text(root / "sys/module/nvidia/version").strip()
    return Versions(
        python=f"{platform.python_version()} ({sys.executable})",
        installed=_installed(),
        driver=module,
        mpiexec=found.pop("mpiexec", None),
        loaded={name: found.get(name) for name in _LOADED},
    )


def _is_there(name: str) -> bool:
    return name == CORE or find_spec(name) is not None


def _installed() -> dict[str, str]:
    found = ((each.metadata["Name"], each.version) for each in metadata.distributions())
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found if name}


def check(facts: Versions) -> Iterator[Finding]:
    yield ok("Python", facts.python)
    yield ok("torshrun", facts.installed.get("torshrun", "not installed, only on the path"))
    for name, probed in facts.loaded.items():
        yield _core(probed) if name == CORE else _library(name, probed)
    yield _driver(facts)
    for name, pattern in _LISTED.items():
        found = [v for k, v in facts.installed.items() if re.fullmatch(pattern, k)]
        if found:
            yield ok(name, ", ".join(found))
    if facts.mpiexec:
        version = re.search(r"\d+\.\d[\w.]*", facts.mpiexec.said)
        yield ok("mpiexec", version[0] if version else "present; it does not report its version")
    yield ok("etcd client", "torshrun's own, over etcd's HTTP gateway (etcd >= 3.4)")


def _core(probed: Probed | None) -> Finding:
    reinstall = (
        "install torshrun again for this Python: pip install --force-reinstall . in its source"
    )
    if probed is None or probed.outcome != "ok":
        said = probed.said if probed else "not examined"
        return problem(
            CORE, f"does not load: {said}", f"Workers cannot use collectives; {reinstall}."
        )
    missing = probed.facts.get("missing") or []
    if missing:
        lacks = f"from another version: it lacks {', '.join(map(str, missing[:3]))}"
        return problem(CORE, lacks, f"It was built from other sources; {reinstall}.")
    return ok(CORE, "loads, and fits this version")


def _library(name: str, probed: Probed | None) -> Finding:
    if probed is None:
        return ok(name, "not installed")
    if probed.outcome == "hung":
        return problem(
            f"import {name}",
            probed.said,
            f"Workers that import {name} hang too, or start slowly: see what `python -X importtime "
            f"-c 'import {name}'` is at (a slow file system, a driver), or give it longer "
            f"(--timeout).",
        )
    if probed.outcome == "failed":
        return problem(
            f"import {name}",
            f"fails: {probed.said}",
            f"Install {name} again for this Python, or see what shadows it: python -P -c 'import "
            f"{name}'.",
        )
    facts = probed.facts
    more = [f"{key} {facts[key]}" for key in ("cuda", "nccl", "library") if facts.get(key)]
    return ok(name, ", ".join([str(facts.get("version", "")), *more]))


def _driver(facts: Versions) -> Finding:
    torch = facts.loaded.get("torch")
    seen = torch.facts if torch else {}
    what = "CUDA driver"
    if facts.driver and seen.get("cuda") and not seen.get("gpus"):
        return problem(
            what,
            f"{facts.driver}, and torch (CUDA {seen['cuda']}) sees no GPU",
            "The driver may be too old for that CUDA, or the devices are hidden from this process: "
            "see nvidia-smi, CUDA_VISIBLE_DEVICES and how the container was started (--gpus all).",
        )
    if seen.get("cuda") and not facts.driver:
        return note(
            what,
            f"none, though torch is built for CUDA {seen['cuda']}",
            "Nothing, if jobs are to run on processors here; else install the driver, or start "
            "the container with the GPUs.",
        )
    return ok(what, facts.driver or "none")
