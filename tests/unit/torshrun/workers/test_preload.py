"""What is imported ahead: the head of a script, and no more."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import torshrun.workers.startup

STARTUP = Path(torshrun.workers.startup.__path__[0])


@pytest.fixture(scope="module")
def preload() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torsh_preload", STARTUP / "torsh_preload.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for modules, which are forgotten afterwards."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before, variables = set(sys.modules), dict(os.environ)
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(variables)


HEADS = {
    "": [],
    "import json": [("json", ())],
    '"""Doc."""\nfrom __future__ import annotations\nimport os, sys': [
        ("__future__", ("annotations",)),
        ("os", ()),
        ("sys", ()),
    ],
    "import os.path as p\nfrom json import decoder, dumps": [
        ("os.path", ()),
        ("json", ("decoder", "dumps")),
    ],
    "import json\nLIMIT = 3\nNAME = 'x'\nimport csv": [("json", ()), ("csv", ())],
    "import os\nos.environ['A'] = 'b'\nimport json": [("os", ())],
    "import json\nprint()\nimport csv": [("json", ())],
    "import json\nif True:\n    import csv": [("json", ())],
    "import json\nfrom . import csv": [("json", ())],
    "import json\nimport nowhere_to_be_found\nimport csv": [("json", ())],
    "import json\nx.y = 3\nimport csv": [("json", ())],
    "import json\nX = f()\nimport csv": [("json", ())],
    "import json\ndef f(): pass\nimport csv": [("json", ())],
    "import json\nthis is no python": [],
    "# coding: no-such\nimport json": [],
    "import json\n\0": [],
}


@pytest.mark.parametrize("text", HEADS)
def test_the_head_of_a_script(preload: ModuleType, tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    assert preload.leading_imports("script", str(tmp_path / "train.py")) == HEADS[text]


def test_what_lies_beside_the_script_is_the_users_own(
    preload: ModuleType, tmp_path: Path, packages: Path
) -> None:
    (packages / "csv.py").write_text("")
    (tmp_path / "train.py").write_text("import json\nimport csv\nimport os\n")
    assert preload.leading_imports("script", str(tmp_path / "train.py")) == [("json", ())]


def test_packages_installed_elsewhere_count(
    preload: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "of_a_cluster.py").write_text("")
    (tmp_path / "train.py").write_text("import of_a_cluster\n")
    monkeypatch.syspath_prepend(str(folder))
    found = preload.leading_imports("script", str(tmp_path / "train.py"))
    assert found == [("of_a_cluster", ())]


def test_the_head_of_a_module_and_of_a_package(preload: ModuleType, packages: Path) -> None:
    (packages / "whole").mkdir()
    (packages / "whole/__init__.py").write_text("raise SystemExit('imported')")
    (packages / "whole/part.py").write_text("import json")
    (packages / "whole/__main__.py").write_text("import csv")
    assert preload.leading_imports("module", "whole.part") == [("json", ())]
    assert preload.leading_imports("module", "whole") == [("csv", ())]
    assert preload.leading_imports("module", "whole.nothing") == []
    assert preload.leading_imports("script", str(packages)) == []


def test_who_asks_for_its_place_is_known(preload: ModuleType, packages: Path) -> None:
    (packages / "asks.py").write_text("import os\nos.getenv('RANK')\nos.environ.get('HOME')\n")
    (packages / "silent.py").write_text("import os\nos.getenv('HOME')\n")
    made = preload.Preload(["RANK"])
    kind = type(os.environ)
    made.run([("silent", ()), ("asks", ()), ("missing", ())])
    assert made.reads == {"asks": "RANK"}
    assert made.modules == ["silent", "asks"]
    assert "No module named 'missing'" in made.failed["missing"]
    assert type(os.environ) is kind


def test_recorded_imports_end_where_the_script_has_changed_its_environment(
    preload: ModuleType, packages: Path
) -> None:
    (packages / "pack").mkdir()
    for name in ("__init__", "first", "later", "broken"):
        (packages / f"pack/{name}.py").write_text("")
    (packages / "pack/first.py").write_text("import os\nos.environ['FROM_IMPORT'] = '1'\n")
    (packages / "pack/broken.py").write_text("1 / 0")
    (packages / "other.py").write_text("")
    record = packages / "record"
    record.write_text(
        "pack.first\t\nother\tFROM_IMPORT\npack.broken\tFROM_IMPORT\npack.nowhere\tFROM_IMPORT\n"
        "pack.later\tFROM_IMPORT,FROM_SCRIPT\nhalf a li"
    )
    made = preload.Preload(["RANK"])
    made.run([("pack", ())])
    made.run_recorded(str(record))
    assert "pack.first" in sys.modules
    assert "pack.later" not in sys.modules
    assert "other" not in sys.modules  # of a package that was not there
    assert made.changed == {"FROM_IMPORT": "1"}
    assert not made.failed
    record.write_text("pack.later\tFROM_IMPORT\n")
    made.run_recorded(str(record))
    assert "pack.later" in sys.modules
    made.run_recorded(str(packages / "nothing"))


THREADS = """
import threading, torsh_preload
done = threading.Event()
thread = threading.Thread(target=done.wait, name="worker of mine")
preload = torsh_preload.Preload([])
print(preload.why_not_fork())
thread.start()
print(preload.why_not_fork())
done.set()
thread.join()
"""


def test_threads_keep_it_from_forking() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THREADS], cwd=STARTUP, capture_output=True, text=True, timeout=60
    )
    before, after = done.stdout.splitlines()
    assert before == ""
    assert "worker of mine" in after
