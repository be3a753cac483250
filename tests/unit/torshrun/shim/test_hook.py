"""Which Pythons are torchrun, and what the hook costs the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torshrun.shim.hook import is_torchrun

MODULE = "torch.distributed.run"


@pytest.fixture
def torchrun(tmp_path: Path) -> str:
    """The script that torch's wheel installs, in short."""
    script = tmp_path / "torchrun"
    script.write_text(f"#!/usr/bin/python\nimport sys\nfrom {MODULE} import main\nmain()\n")
    return str(script)


def here(monkeypatch: pytest.MonkeyPatch, given: list[str], argv: list[str]) -> bool:
    monkeypatch.setattr(sys, "orig_argv", ["python", *given])
    monkeypatch.setattr(sys, "argv", argv)
    return is_torchrun()


def test_torchruns_script_is_torchrun(monkeypatch: pytest.MonkeyPatch, torchrun: str) -> None:
    assert here(monkeypatch, ["-X", "dev", torchrun, "a", "-m"], [torchrun, "a", "-m"])


@pytest.mark.parametrize("given", ["-m {}", "-m{}", "-B -m {}", "-Bm {}", "-Bm{}"])
def test_torchs_module_is_torchrun(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    words = given.format(MODULE).split()
    assert here(monkeypatch, [*words, "train.py", "-x"], ["-m", "train.py", "-x"])


def test_other_programs_are_not(
    monkeypatch: pytest.MonkeyPatch, torchrun: str, tmp_path: Path
) -> None:
    other = tmp_path / "bin" / "torchrun"
    other.parent.mkdir()
    other.write_text("print('of somebody else')")
    assert not here(monkeypatch, [str(other), "a"], [str(other), "a"])
    assert not here(monkeypatch, ["-m", "json.tool"], ["-m"])
    assert not here(monkeypatch, ["-c", "pass", MODULE], ["-c", MODULE])
    assert not here(monkeypatch, ["train.py", torchrun], ["train.py", torchrun])
    assert not here(monkeypatch, [str(tmp_path / "none" / "torchrun")], ["torchrun"])
    assert not here(monkeypatch, [], [""])
    assert not here(monkeypatch, [], [])


def loaded(**environ: str) -> set[str]:
    code = "import sys; print(*sys.modules)"
    kept = {name: each for name, each in os.environ.items() if name != "TORSHRUN_AS_TORCHRUN"}
    command = [sys.executable, "-P", "-c", code]
    told = subprocess.run(
        command, env={**kept, **environ}, capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stderr == ""
    return set(told.stdout.split())


def test_a_start_of_python_loads_next_to_nothing_for_it() -> None:
    """The modules are counted, since times depend on the machine."""
    without = loaded()
    assert "torshrun" not in without
    assert loaded(TORSHRUN_AS_TORCHRUN="0") == without
    own = {"torshrun", "torshrun.shim", "torshrun.shim.hook"}
    assert own <= loaded(TORSHRUN_AS_TORCHRUN="1")
    # What finds an editable installation's files is not the hook's.
    more = loaded(TORSHRUN_AS_TORCHRUN="1") - without - own
    assert not {each for each in more if each.startswith(("torsh", "torch", "typing"))}
