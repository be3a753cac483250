"""Which Pythons are torchrun, and what the hook costs the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torshrun.shim.hook import torchrun_here

MODULE = "torch.distributed.run"


@pytest.fixture
def torchrun(tmp_path: Path) -> str:
    """The script that torch's wheel installs, in short."""
    script = tmp_path / "torchrun"
    script.write_text(f"#!/usr/bin/python\nimport sys\nfrom {MODULE} import main\nmain()\n")
    return str(script)


def here(
    monkeypatch: pytest.MonkeyPatch, given: list[str], argv: list[str]
) -> tuple[list[str], list[str]] | None:
    monkeypatch.setattr(sys, "orig_argv", ["python", *given])
    monkeypatch.setattr(sys, "argv", argv)
    return torchrun_here()


def test_torchruns_script_is_torchrun(monkeypatch: pytest.MonkeyPatch, torchrun: str) -> None:
    found = here(monkeypatch, ["-X", "dev", torchrun, "a", "-m"], [torchrun, "a", "-m"])
    assert found == (["-X", "dev"], ["a", "-m"])


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (["-m", MODULE], []),
        ([f"-m{MODULE}"], []),
        (["-B", "-m", MODULE], ["-B"]),
        (["-Bm", MODULE], ["-B"]),
        ([f"-Bm{MODULE}"], ["-B"]),
    ],
)
def test_torchs_module_is_torchrun(
    monkeypatch: pytest.MonkeyPatch, given: list[str], options: list[str]
) -> None:
    found = here(monkeypatch, [*given, "train.py", "-x"], ["-m", "train.py", "-x"])
    assert found == (options, ["train.py", "-x"])


def test_other_programs_are_not(
    monkeypatch: pytest.MonkeyPatch, torchrun: str, tmp_path: Path
) -> None:
    other = tmp_path / "bin" / "torchrun"
    other.parent.mkdir()
    other.write_text("print('of somebody else')")
    assert here(monkeypatch, [str(other), "a"], [str(other), "a"]) is None
    assert here(monkeypatch, ["-m", "json.tool"], ["-m"]) is None
    assert here(monkeypatch, ["-c", "pass", MODULE], ["-c", MODULE]) is None
    assert here(monkeypatch, ["train.py", torchrun], ["train.py", torchrun]) is None
    assert here(monkeypatch, [str(tmp_path / "none" / "torchrun")], ["torchrun"]) is None
    assert here(monkeypatch, [], [""]) is None
    assert here(monkeypatch, [], []) is None


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
