"""torshctl shim, in an environment that is made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError, TorshError
from torshrun.ctl.shim import LINE, NAME, Environment


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    packages, scripts = tmp_path / "site-packages", tmp_path / "bin"
    packages.mkdir()
    scripts.mkdir()
    (packages / "torshrun_shim.pth").write_text("import os # torshrun's own, of torchrun")
    (packages / "paths.pth").write_text("/somewhere/else\n")
    (scripts / "torchrun").write_text("from torch.distributed.run import main")
    return packages, scripts


def test_what_is_installed_is_removed_without_a_trace(folders: tuple[Path, Path]) -> None:
    packages, scripts = folders
    before = {path: path.read_bytes() for path in (*packages.iterdir(), *scripts.iterdir())}
    here = Environment(*folders)
    assert here.status({}).endswith("torchrun is torch's own")
    assert NAME in here.install()
    assert (packages / NAME).read_text() == LINE
    assert here.status({}).endswith("torchrun is torshrun")
    for off in ("0", "false", "No", "OFF"):
        assert here.status({"TORSHRUN_AS_TORCHRUN": off}).endswith("torchrun is torch's own")
    assert NAME in here.remove()
    assert {path: path.read_bytes() for path in (*packages.iterdir(), *scripts.iterdir())} == before
    assert here.status({"TORSHRUN_AS_TORCHRUN": "1"}).endswith("torchrun is torshrun")


def test_a_second_one_is_refused(folders: tuple[Path, Path]) -> None:
    here = Environment(*folders)
    here.install()
    with pytest.raises(ConfigError, match=f"installed already: .*{NAME}"):
        here.install()
    here.remove()
    with pytest.raises(ConfigError, match="not installed"):
        here.remove()


def test_another_tools_is_named(folders: tuple[Path, Path]) -> None:
    packages, scripts = folders
    other = packages / "other.pth"
    other.write_text("import other_launcher.torchrun\n")
    with pytest.raises(ConfigError, match=r"other\.pth stands in for torchrun here already"):
        Environment(*folders).install()
    other.unlink()
    (scripts / "torchrun").write_text("from other_launcher import main")
    about = packages / "other_launcher-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-launcher\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[console_scripts]\ntorchrun = other_launcher:main\n")
    with pytest.raises(ConfigError, match="bin/torchrun of other-launcher stands in"):
        Environment(*folders).install()
    assert "other-launcher" in Environment(*folders).status({})
    assert not (packages / NAME).exists()


def test_a_place_where_nothing_can_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TorshError, match="TORSHRUN_AS_TORCHRUN=1"):
        Environment(tmp_path / "none", tmp_path).install()


def test_the_line_does_nothing_without_torshrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torshrun.shim.hook", None)
    assert LINE.startswith("import ")
    assert LINE.count("\n") == 1
    exec(LINE)
