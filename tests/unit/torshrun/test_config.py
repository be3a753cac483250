"""What is accepted, what is refused and which source wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.config import LaunchConfig, resolve


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def made(script: str, environ: dict[str, str] | None = None, **options: str | None) -> LaunchConfig:
    return resolve(options, target=script, arguments=(), kind="script", environ=environ or {})


def test_defaults(script: str) -> None:
    assert made(script) == LaunchConfig(target=script)


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("nproc_per_node", "4", 4),
        ("max_restarts", "0", 0),
        ("run_id", "job-7", "job-7"),
        ("master_port", "65535", 65535),
        ("master_port", "0", 0),
        ("shutdown_timeout", "2.5", 2.5),
        ("shutdown_timeout", "0", 0.0),
    ],
)
def test_values(script: str, option: str, text: str, value: object) -> None:
    assert getattr(made(script, **{option: text}), option) == value


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("nproc_per_node", "0", "--nproc-per-node: at least 1"),
        ("nproc_per_node", "-2", "--nproc-per-node: at least 1"),
        ("nproc_per_node", "four", "'four' is not a whole number"),
        ("max_restarts", "-1", "-1 is negative"),
        ("max_restarts", "1.5", "not a whole number"),
        ("master_port", "65536", "not a TCP port"),
        ("master_port", "-1", "not a TCP port"),
        ("master_port", "http", "not a whole number"),
        ("shutdown_timeout", "-1", "seconds >= 0"),
        ("shutdown_timeout", "inf", "seconds >= 0"),
        ("shutdown_timeout", "nan", "seconds >= 0"),
        ("run_id", "", "--rdzv-id: must not be empty"),
        ("master_addr", "", "must not be empty"),
    ],
)
def test_refusals(script: str, option: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made(script, **{option: text})


@pytest.mark.parametrize("variable", ["TORSH_MASTER_PORT", "PET_MASTER_PORT", "MASTER_PORT"])
def test_a_bad_variable_is_named(script: str, variable: str) -> None:
    with pytest.raises(ConfigError, match=f"^{variable}: 70000"):
        made(script, {variable: "70000"})


def test_options_win_over_torsh_over_pet(script: str) -> None:
    environ = {"TORSH_NPROC_PER_NODE": "2", "PET_NPROC_PER_NODE": "3", "PET_MAX_RESTARTS": "5"}
    config = made(script, environ)
    assert (config.nproc_per_node, config.max_restarts) == (2, 5)
    assert made(script, environ, nproc_per_node="4").nproc_per_node == 4


def test_an_empty_variable_is_none(script: str) -> None:
    assert made(script, {"PET_NPROC_PER_NODE": ""}).nproc_per_node == 1


def test_inside_a_worker_the_outer_job_gives_no_defaults(script: str) -> None:
    outer = {"TORCHELASTIC_RUN_ID": "o", "TORSH_RUN_ID": "o", "MASTER_PORT": "1234"}
    assert made(script, outer) == LaunchConfig(target=script)


def test_the_log_directory_may_not_be_a_file(script: str) -> None:
    with pytest.raises(ConfigError, match="not a directory"):
        made(script, log_dir=script)


def test_scripts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        made(str(tmp_path / "none.py"))
    with pytest.raises(ConfigError, match="is a directory"):
        made(str(tmp_path))
    (tmp_path / "__main__.py").write_text("")
    assert made(str(tmp_path)).target == str(tmp_path)


def test_programs(tmp_path: Path) -> None:
    def program(name: str, path: str = "") -> str:
        return resolve({}, target=name, arguments=(), kind="program", environ={"PATH": path}).target

    tool = tmp_path / "tool"
    tool.write_text("")
    with pytest.raises(ConfigError, match="not executable"):
        program(str(tool))
    with pytest.raises(ConfigError, match="not in PATH"):
        program("tool", str(tmp_path))
    tool.chmod(0o755)
    assert program("tool", f"/nonexistent:{tmp_path}") == str(tool)
    with pytest.raises(ConfigError, match="does not exist"):
        program(f"{tmp_path}/nothing")
    with pytest.raises(ConfigError, match="is a directory"):
        program(f"{tmp_path}/")
