"""torch's LaunchConfig as torshrun's options, without torch."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torshrun.cli import parse
from torshrun.config.request import gather
from torshrun.config.resolve import resolve
from torshrun.shim.launch_config import (
    options_of,
    program_of,
    remove_torchs_folder,
    signals_of,
    why_not,
)


class DefaultLogsSpecs:
    def __init__(self, root: str = os.devnull, redirects: Any = 0, tee: Any = 0) -> None:
        self.root_log_dir = root
        self._redirects, self._tee = redirects, tee
        self._local_ranks_filter = {1, 0}


def config(**changes: Any) -> SimpleNamespace:
    facts: dict[str, Any] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": 2,
        "run_id": "job",
        "role": "default_role",
        "rdzv_endpoint": "localhost:0",
        "rdzv_backend": "c10d",
        "rdzv_configs": {"timeout": 900},
        "max_restarts": 3,
        "logs_specs": DefaultLogsSpecs(),
        "metrics_cfg": {},
    }
    return SimpleNamespace(**facts | changes)


def job(options: list[str]) -> Any:
    """What torshrun makes of them."""
    line = parse([*options, "--no-python", "true"])
    return resolve(gather(line.given, line.script, line.arguments, {}), os.environ).job


def test_one_node_meets_by_itself() -> None:
    made = job(options_of(config()))
    assert (made.rendezvous, made.run_id, made.nproc_per_node) == (None, "job", 2)
    assert (made.max_restarts, made.role) == (3, "default_role")


def test_one_static_node_keeps_its_port() -> None:
    static = {"rdzv_backend": "static", "rdzv_endpoint": "127.0.0.1:29431"}
    made = job(options_of(config(**static, rdzv_configs={"rank": 0, "timeout": 900})))
    assert (made.master_addr, made.master_port) == ("127.0.0.1", 29431)


def test_several_nodes_meet_where_it_says() -> None:
    nodes = {"min_nodes": 1, "max_nodes": 3, "rdzv_endpoint": "node0:29400"}
    conf = {"timeout": 900, "join_timeout": 60, "store_type": "file"}
    made = job(options_of(config(**nodes, rdzv_configs=conf)))
    assert (made.min_nodes, made.max_nodes) == (1, 3)
    assert made.rendezvous.backend == "tcp"
    assert [*map(str, made.rendezvous.endpoints)] == ["node0:29400"]
    assert made.rendezvous.join_timeout == 60


def test_the_rest_is_passed_on(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(str(tmp_path), {0: 1, 1: 3}, 2)
    more = {
        "virtual_local_rank": True,
        "shutdown_timeout": 5,
        "log_line_prefix_template": "<${rank}>",
        "duplicate_stdout_filters": ["a,b", "c"],
        "signals_to_handle": "SIGTERM,SIGUSR2",
        "numa_options": SimpleNamespace(affinity_mode=SimpleNamespace(value="node")),
    }
    words = options_of(config(logs_specs=logs, **more))
    assert f"--log-dir={tmp_path}" in words
    assert "--redirects=0:1,1:3" in words
    assert "--tee=2" in words
    assert "--duplicate-stdout-filters=a,,b,c" in words
    assert {"--virtual-local-rank", "--numa-binding=node", "--shutdown-timeout=5"} <= {*words}
    assert "--local-ranks-filter=0,1" in words
    assert "--log-line-prefix-template=<${rank}>" in words
    assert signals_of(config(**more)) == (signal.SIGTERM, signal.SIGUSR2)


def test_a_directory_that_torch_has_made_is_removed() -> None:
    made = tempfile.mkdtemp(prefix="torchelastic_")
    logs = config(logs_specs=DefaultLogsSpecs(made))
    assert not any("--log-dir" in word for word in options_of(logs))
    remove_torchs_folder(logs)
    assert not Path(made).exists()


def test_commands_are_scripts_modules_and_programs() -> None:
    assert program_of(sys.executable, ["-u", "train.py", "-x", 1]) == ["--", "train.py", "-x", "1"]
    words = ["-m", "--", "pack.age", "--", "a"]  # torshrun drops one --, which is not the program's
    assert program_of(sys.executable, ["-u", "-m", "pack.age", "--", "a"]) == words
    assert program_of("sleep", ["1"]) == ["--no-python", "--", "sleep", "1"]
    python = [sys.executable, "train.py"]
    assert program_of(python[0], python[1:]) == ["--no-python", "--", *python]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rdzv_backend": "mine"}, "'mine'"),
        ({"rdzv_backend": "etcd-v2", "max_nodes": 2}, "'etcd-v2'"),
        ({"event_log_handler": "mine"}, "mine"),
        ({"metrics_cfg": {"a": "b"}}, "metrics_cfg"),
        ({"logs_specs": SimpleNamespace(root_log_dir="")}, "SimpleNamespace"),
    ],
)
def test_plugins_of_torchs_are_named(changes: dict[str, Any], named: str) -> None:
    assert named in why_not(config(**changes), "train.py")
    assert why_not(config(), "train.py") == ""
    assert why_not(config(rdzv_backend="etcd"), "train.py") == ""
    assert "entrypoint" in why_not(config(), None)
