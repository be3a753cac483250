"""Completion of options, by the shells themselves where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from torshrun import cli
from torshrun.completion import completion
from torshrun.config.options import OPTIONS


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words behind torshrun."""
    typed = " ".join(f"'{word}'" for word in ("torshrun", *words))
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _torshrun; echo ${{COMPREPLY[@]}}"
    script = f"{completion('bash')}\n{ask}"
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30)
    assert told.stderr == ""
    return told.stdout.split()


def test_bash() -> None:
    assert completed("--nproc") == ["--nproc-per-node"]
    assert completed("--color", "") == ["auto", "always", "never"]
    assert completed("--color", "al") == ["always"]
    assert completed("--rdzv-id", "--x") == []
    assert completed("train") == []  # by its default: files
    assert {spelling for each in OPTIONS for spelling in each.spellings} <= set(completed("-"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_takes_its_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["--print-completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert all(f"{each.key.replace('_', '-')}" in script.read_text() for each in OPTIONS)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=30)
