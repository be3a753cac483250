"""Converts torch's LaunchConfig to torshrun's options, or says why it cannot.

It is accessed by attributes, so that torch need not be loaded. Attributes that a version of torch
lacks have their defaults.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torshrun.config.values import CONF_WITHOUT_EFFECT, signals
from torshrun.shim.served import why_not_backend, why_not_plugins

_PLAIN = {
    "role": "--role",
    "max_restarts": "--max-restarts",
    "local_addr": "--local-addr",
    "shutdown_timeout": "--shutdown-timeout",
    "log_line_prefix_template": "--log-line-prefix-template",
    "signals_to_handle": "--signals-to-handle",
}
_LISTS = {
    "duplicate_stdout_filters": "--duplicate-stdout-filters",
    "duplicate_stderr_filters": "--duplicate-stderr-filters",
}
_MADE_BY_TORCH = "torchelastic_"
"""The prefix of a directory that torch has created because none was given."""
Entrypoint = Callable[..., Any] | str | None


def why_not(config: Any, entrypoint: Entrypoint) -> str:
    """Return why torshrun cannot run this, or "" if it can."""
    alone = config.max_nodes == 1
    if entrypoint is None:
        return "it has no entrypoint"
    if type(config.logs_specs).__name__ != "DefaultLogsSpecs":
        return why_not_plugins(type(config.logs_specs).__name__, "")
    if config.metrics_cfg:
        return "its metrics_cfg is for torch's own metrics"
    handler = str(getattr(config, "event_log_handler", "null"))
    backend = "" if alone and config.rdzv_backend.startswith("etcd") else config.rdzv_backend
    return why_not_plugins("", handler) or (why_not_backend(backend) if backend else "")


def options_of(config: Any) -> list[str]:
    """Return the job's options, without what it runs."""
    words = [f"--nproc-per-node={config.nproc_per_node}", *_meeting(config), *_output(config)]
    for name, option in _PLAIN.items():
        value = getattr(config, name, None)
        if value is not None:
            words.append(f"{option}={value}")
    for name, option in _LISTS.items():
        texts = getattr(config, name, None)
        if texts:
            words.append(f"{option}={','.join(text.replace(',', ',,') for text in texts)}")
    if getattr(config, "virtual_local_rank", False):
        words.append("--virtual-local-rank")
    numa = getattr(config, "numa_options", None)
    if numa is not None:
        words.append(f"--numa-binding={numa.affinity_mode.value}")
    return words


def _meeting(config: Any) -> list[str]:
    """Return options for the rendezvous of nodes, or of the workers of a single node."""
    run_id = [f"--rdzv-id={config.run_id}"] if config.run_id else []
    if config.max_nodes == 1 and config.rdzv_backend != "static":
        return ["--standalone", *run_id]
    words = [f"--nnodes={config.min_nodes}:{config.max_nodes}", *run_id]
    words.append(f"--rdzv-backend={config.rdzv_backend}")
    words.append(f"--rdzv-endpoint={config.rdzv_endpoint}")
    conf: Mapping[str, Any] = config.rdzv_configs
    if "rank" in conf:
        words.append(f"--node-rank={conf['rank']}")
    known = {key: conf[key] for key in conf if key not in (*CONF_WITHOUT_EFFECT, "timeout")}
    if known and config.max_nodes > 1:
        words.append("--rdzv-conf=" + ",".join(f"{key}={each}" for key, each in known.items()))
    return words


def _output(config: Any) -> list[str]:
    specs = config.logs_specs
    place = specs.root_log_dir
    words = []
    for name in ("redirects", "tee"):
        rule = getattr(specs, f"_{name}")
        if isinstance(rule, Mapping):
            text = ",".join(f"{rank}:{int(streams)}" for rank, streams in rule.items())
        else:
            text = str(int(rule)) if rule else ""
        if text:
            words.append(f"--{name}={text}")
    if place and not _is_torchs(Path(place)):
        words.append(f"--log-dir={place}")
    ranks = getattr(specs, "_local_ranks_filter", None)
    if ranks:
        words.append(f"--local-ranks-filter={','.join(map(str, sorted(ranks)))}")
    return words


def _is_torchs(place: Path) -> bool:
    in_temporary = place.parent == Path(tempfile.gettempdir())
    return str(place) == os.devnull or (in_temporary and place.name.startswith(_MADE_BY_TORCH))


def remove_torchs_folder(config: Any) -> None:
    """Remove the empty directory that torch has created for logs that nobody asked for."""
    place = Path(config.logs_specs.root_log_dir or os.devnull)
    if _is_torchs(place) and place.is_dir():
        try:
            place.rmdir()
        except OSError:
            return


def program_of(entrypoint: str, args: Sequence[Any]) -> list[str]:
    """Return the arguments of torshrun that say what to run."""
    words = [str(each) for each in args]
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    if entrypoint == python and words[:1] == ["-u"]:  # as torchrun has it
        run = words[1:]
        if run[:1] == ["-m"]:
            return ["-m", "--", *run[1:]]
        if run and not run[0].startswith("-"):  # otherwise it is an option of Python, such as -c
            return ["--", *run]
    return ["--no-python", "--", entrypoint, *words]


def signals_of(config: Any) -> tuple[signal.Signals, ...]:
    """Return the signals that stop the job."""
    return signals(getattr(config, "signals_to_handle", None) or "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
