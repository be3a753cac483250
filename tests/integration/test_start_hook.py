"""The start hook in the workers' Python: no traces, no harm, and JAX finds its place.

JAX itself is in test_jax.py; here a package of the test's own has its place.
"""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from torshrun.workers.spec import python_path

HOOK = Path(python_path({}))
PLACE = {
    "JAX_COORDINATOR_ADDRESS": "127.0.0.1:4000",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
}
CLUSTERS = """
class ClusterEnv:
    name = ""
    _cluster_types = []
    def __init_subclass__(cls):
        cls._cluster_types.append(cls)

class Slurm(ClusterEnv):
    name = "slurm"
"""
ASK = """
import json
from jax._src import clusters
cluster = clusters.ClusterEnv._cluster_types[0]
answer = [c.name for c in clusters.ClusterEnv._cluster_types]
if cluster.name == "torshrun":
    answer += [cluster.is_env_present(), cluster.get_process_count(), cluster.get_process_id(),
               cluster.get_coordinator_address(timeout_secs=1, override_coordinator_port=None),
               cluster.get_local_process_id()]
answer.append([type(clusters.__loader__).__name__, clusters.__spec__.loader is clusters.__loader__])
print(json.dumps(answer))
"""
REGISTERED = ["torshrun", "slurm", True, 4, 3, "127.0.0.1:4000", 1, ["SourceFileLoader", True]]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A directory with a package that looks like JAX where the hook looks at it."""
    folder = tmp_path / "packages"
    (folder / "jax/_src").mkdir(parents=True)
    (folder / "jax/__init__.py").touch()
    (folder / "jax/_src/__init__.py").touch()
    (folder / "jax/_src/clusters.py").write_text(CLUSTERS)
    return folder


def run(
    code: str,
    path: list[Path],
    *flags: str,
    python: str = sys.executable,
    **changes: str | None,
) -> subprocess.CompletedProcess[str]:
    """A worker's Python with this PYTHONPATH; changes are made to PLACE, None removes."""
    inherited = {"PYTHONPATH": ":".join(map(str, path))} if path else {}
    environ = {"PATH": "/usr/bin:/bin", **inherited, **PLACE, **changes}
    return subprocess.run(
        [python, *flags, "-c", code],
        cwd="/",
        env={name: value for name, value in environ.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=60,
    )


def answer(code: str, path: list[Path], *flags: str, **options: Any) -> Any:
    ended = run(code, path, *flags, **options)
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


STATE = """
import json, sys
print(json.dumps([sorted(sys.modules), sys.path, sorted(map(str, sys.path_importer_cache))]))
"""


def test_it_leaves_no_trace_and_loads_nothing() -> None:
    assert answer(STATE, [HOOK]) == answer(STATE, [])
    assert answer(STATE, [HOOK], "-S")[0] == answer(STATE, [], "-S")[0]
    assert answer(STATE, [HOOK], "-I") == answer(STATE, [], "-I")


def test_jax_finds_its_place_first_here(packages: Path) -> None:
    assert answer(ASK, [HOOK, packages]) == REGISTERED


def test_a_process_that_is_alone_on_its_node_sees_all_gpus(packages: Path) -> None:
    assert answer(ASK, [HOOK, packages], LOCAL_WORLD_SIZE="1")[6] is None


def test_only_a_worker_has_a_place(packages: Path) -> None:
    present = ASK.replace("cluster.is_env_present(),", "cluster.is_env_present()]\n    0 and [")
    assert answer(present, [HOOK, packages])[2] is True
    assert answer(present, [HOOK, packages], JAX_PROCESS_ID=None)[2] is False
    assert answer(ASK, [HOOK, packages], JAX_COORDINATOR_ADDRESS=None)[0] == "slurm"


def test_it_reaches_what_a_worker_starts(packages: Path) -> None:
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ASK!r}])"
    assert answer(child, [HOOK, packages]) == REGISTERED


def test_an_interpreter_without_torshrun_has_it_too(packages: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = str(tmp_path / "venv/bin/python")
    missing = run("import torsh_runtime", [], python=python)
    assert "ModuleNotFoundError" in missing.stderr
    assert answer(ASK, [HOOK, packages], python=python) == REGISTERED


def test_a_package_in_an_archive(packages: Path, tmp_path: Path) -> None:
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for source in packages.rglob("*.py"):
            file.write(source, source.relative_to(packages))
    assert answer(ASK, [HOOK, archive]) == [*REGISTERED[:-1], ["zipimporter", True]]


def test_another_sitecustomize_has_its_turn(tmp_path: Path) -> None:
    theirs = "import sys; sys.theirs = __name__, __file__"
    (tmp_path / "sitecustomize.py").write_text(theirs)
    code = "import json, sys, sitecustomize; print(json.dumps([*sys.theirs, sitecustomize.theirs]))"
    (tmp_path / "sitecustomize.py").write_text(theirs + "; theirs = 1")
    expected = ["sitecustomize", str(tmp_path / "sitecustomize.py"), 1]
    assert answer(code, [HOOK, tmp_path]) == answer(code, [tmp_path]) == expected


@pytest.mark.parametrize("mistake", ["1 / 0", "import no_such_module", "raise SystemExit(3)"])
def test_another_sitecustomize_fails_as_without_this_one(tmp_path: Path, mistake: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(mistake)
    with_hook, without = (run("print('ran')", path) for path in ([HOOK, tmp_path], [tmp_path]))
    assert with_hook.returncode == without.returncode
    assert with_hook.stdout == without.stdout
    assert with_hook.stderr.splitlines()[-1:] == without.stderr.splitlines()[-1:]


@pytest.mark.parametrize("clusters", ["", "ClusterEnv = None", "class ClusterEnv: pass"])
def test_a_jax_that_has_changed_is_left_alone(packages: Path, clusters: str) -> None:
    (packages / "jax/_src/clusters.py").write_text(clusters)
    ended = run("import jax._src.clusters; print('fine')", [HOOK, packages])
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "fine\n", "")


def test_a_broken_jax_fails_as_without_it(packages: Path) -> None:
    (packages / "jax/_src/clusters.py").write_text("raise KeyError('broken')")
    ended = run("import jax._src.clusters", [HOOK, packages])
    assert ended.returncode == 1
    assert ended.stderr.endswith("KeyError: 'broken'\n")
    (packages / "jax/_src/clusters.py").unlink()
    ended = run("import jax._src.clusters", [HOOK, packages])
    assert "ModuleNotFoundError: No module named 'jax._src.clusters'" in ended.stderr


def test_registering_twice_is_harmless(packages: Path) -> None:
    again = "from torsh_runtime.integrations import jax\njax.register()\njax.register()\n"
    root = HOOK.parents[2]
    assert answer(again + ASK, [HOOK, packages, root]) == REGISTERED
    assert answer(again + ASK, [packages, root]) == REGISTERED


def test_the_path_that_a_worker_inherits_comes_after() -> None:
    here = str(HOOK)
    assert python_path({"PYTHONPATH": ""}) == here
    assert python_path({"PYTHONPATH": "/a:/b"}) == f"{here}:/a:/b"
    assert python_path({"PYTHONPATH": f"{here}:/a:"}) == f"{here}:/a:"
