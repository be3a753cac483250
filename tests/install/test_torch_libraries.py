"""Libraries over torch that ask for gloo, and compare its name, train on torsh alike.

At full length only (--soak): what they need is installed into an environment of the test's own.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from support.launchers import Bench
from support.torch_scripts import SCRIPTS, alike

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch"),
]
LIBRARIES = ("accelerate>=1.0", "transformers>=4.50", "lightning>=2.4")


@pytest.fixture(scope="module")
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the libraries, and all that this one has."""
    if not request.config.getoption("--soak"):
        pytest.skip(f"installs {', '.join(LIBRARIES)}: only with --soak")
    home = tmp_path_factory.mktemp("libraries")
    venv.create(home, with_pip=True, symlinks=True)
    ours = [sysconfig.get_paths()["purelib"], *(path for path in sys.path if "-packages" in path)]
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(ours)]
    (site,) = home.glob("lib/python*/site-packages")
    (site / "zz_ours.pth").write_text("\n".join(lines))
    command = [str(home / "bin/python"), "-m", "pip", "install", "-q", *LIBRARIES]
    subprocess.run(command, check=True, timeout=900, cwd=home)
    return str(home / "bin/python")


@pytest.mark.parametrize(
    ("script", "losses"), [("accelerated.py", 4), ("trained.py", 16), ("lit.py", 16)]
)
def test_a_library_trains_alike(tmp_path: Path, python: str, script: str, losses: int) -> None:
    environ = {"PYTHON_EXEC": python, "HF_HUB_OFFLINE": "1"}
    bench = Bench(tmp_path)
    told = alike(bench, 2, str(SCRIPTS / script), **environ)
    assert len(told) == losses
    again = alike(bench, 2, str(SCRIPTS / script), **environ, TORSH_PRELOAD="auto")
    assert again == told
