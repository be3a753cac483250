"""--run-path: a script sees what it would see if Python ran it itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torshrun.config.job import LaunchConfig
from torshrun.topology.cpus import allowed_cpus
from torshrun.workers.spec import WorkerSpec

SHOW = """
import json, os, sys
import neighbour
paths = [os.path.abspath(path) for path in [__file__, *sys.path]]
loaded = [name for name in sys.modules if name.partition(".")[0] in ("torshrun", "pathlib")]
print(json.dumps([sys.argv, paths, __name__, loaded]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/neighbour.py").touch()
    (tmp_path / "scripts/show.py").write_text(SHOW)
    (tmp_path / "scripts/__main__.py").write_text(SHOW)
    (tmp_path / "link.py").symlink_to("scripts/show.py")
    return tmp_path


def run(folder: Path, kind: str, target: str, *arguments: str) -> list[object]:
    config = LaunchConfig(target=target, kind=kind, arguments=arguments)  # type: ignore[arg-type]
    spec = WorkerSpec.from_config(config, os.environ, allowed_cpus())
    ended = subprocess.run(
        spec.argv, env=spec.environ, cwd=folder, capture_output=True, text=True, timeout=30
    )
    assert ended.returncode == 0, ended.stderr
    seen: list[object] = json.loads(ended.stdout)
    return seen


@pytest.mark.parametrize("target", ["scripts/show.py", "link.py", "scripts"])
def test_it_looks_like_a_script(folder: Path, target: str) -> None:
    seen, expected = (run(folder, kind, target, "--flag", "-u") for kind in ("path", "script"))
    assert seen == expected
    assert seen[0] == [target, "--flag", "-u"]
    assert seen[3] == []


def test_a_safe_path_stays_safe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", str(folder / "scripts"))
    assert run(folder, "path", "link.py") == run(folder, "script", "link.py")


def test_its_exit_code_and_traceback(folder: Path) -> None:
    (folder / "bad.py").write_text("import sys\nsys.exit(int(sys.argv[1]) or (lambda: 1 / 0)())\n")
    for argument, code in (("9", 9), ("0", 1)):
        spec = WorkerSpec.from_config(
            LaunchConfig(target="bad.py", kind="path", arguments=(argument,)),
            {"PYTHON_EXEC": sys.executable},
            allowed_cpus(),
        )
        ended = subprocess.run(
            spec.argv, cwd=folder, capture_output=True, text=True, timeout=30, env=spec.environ
        )
        assert ended.returncode == code
        assert ("ZeroDivisionError" in ended.stderr) == (code == 1)
