"""The torshctl command: what it refuses, where it looks, and how little it loads."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from torsh_runtime.errors import ConfigError
from torshrun.ctl.command import run
from torshrun.ctl.meeting_options import meeting_place

MEET = "--rdzv-endpoint=127.0.0.1:1"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PET_RDZV_ENDPOINT", "TORSH_RDZV_ENDPOINT", "TORSH_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["status", "job"], "--rdzv-endpoint is missing"),
        (["status", "job", "--rdzv-backend=etcs", MEET], "'etcs' is not one of"),
        (["status", "job", "--rdzv-backend=tcp", "--rdzv-endpoint=a:1,b:2"], "one place to meet"),
        (["scale", "job", "0", MEET], "'0' is not possible"),
        (["scale", "job", "3:2", MEET], "MIN:MAX needs"),
        (["scale", "job", MEET], "Missing argument"),
        (["drain", "job", MEET], "Missing argument"),
        (["stop", "job", "--timeout=soon", MEET], "'soon' is not a number of seconds"),
        (["status", "--json", MEET], "apply to one run: name it"),
        (["halt", "job"], "No such command 'halt'"),
        (["doctor", "--only=everything"], "'everything' is not one of"),
        (["doctor", "--only=etcd"], "nothing to look at"),
        (["doctor", "--all-pairs"], "need --peers"),
        (["doctor", "--network-check"], "need --peers"),
        (["doctor", "--gpus"], "--gpus needs --network-check"),
        (["doctor", "--serve=7000", "--json"], "--serve excludes these options"),
        (["doctor", "--peers=node1"], "HOST:PORT"),
        (["doctor", "--timeout=soon"], "'soon' is not a number of seconds"),
        (["doctor", "--rdzv-backend=etcs", MEET], "'etcs' is not one of"),
    ],
)
def test_wrong_usage(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("torshctl: error: ")
    assert said in error


def test_alone_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    error = capsys.readouterr().err
    assert error.startswith("Usage: torshctl ")
    assert "\n  status " in error


def test_the_version_is_the_distributions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"torshctl {version('torshrun')}\n"


def test_a_store_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "job", MEET]) == 69
    assert "no store is served at 127.0.0.1:1" in capsys.readouterr().err


def test_an_etcd_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "job", "--rdzv-backend=etcd", MEET, "--rdzv-conf=ttl=1"]) == 69
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [[], ["status"], ["scale"], ["drain"], ["stop"], ["forget"], ["doctor"]]
)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    assert "torshctl" in capsys.readouterr().out


def test_names_may_have_underscores(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "job", "--rdzv_endpoint=127.0.0.1:1"]) == 69


def test_the_variables_of_torshrun_say_where() -> None:
    environ = {
        "PET_RDZV_BACKEND": "c10d",
        "TORSH_RDZV_ENDPOINT": "host",
        "TORSH_NNODES": "1",
        "TORSH_SECRET": "a long and random word",
    }
    place = meeting_place({}, environ)
    assert (place.backend, place.secret) == ("tcp", "a long and random word")
    assert place.endpoints == (("host", 29400),)


def test_a_file_says_where(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("nnodes: 3\nrdzv_backend: etcd\nrdzv_endpoint: [a, b]\nmax_restarts: 3\n")
    place = meeting_place({"config": str(file)}, {})
    assert place.endpoints == (("a", 2379), ("b", 2379))


def test_a_static_job_meets_at_its_master() -> None:
    assert meeting_place({"master_addr": "host"}, {}).endpoints == (("host", 29500),)
    with pytest.raises(ConfigError, match="missing"):
        meeting_place({"master_addr": "host", "rdzv_backend": "tcp"}, {})


@pytest.mark.parametrize("heavy", ["asyncio", "msgpack", "ssl", "yaml", "numpy"])
def test_it_starts_light(heavy: str) -> None:
    code = "import sys, torshrun.ctl.command; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert heavy not in ended.stdout.split()
