"""The check that a test leaves nothing behind, and the worlds to run collectives in."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from support.launcher import Launcher
from support.named_memory import held_by_others, named_memory
from support.one_thread import compute_on_one_thread
from support.processes import soon

if TYPE_CHECKING:
    from support.etcd_servers import EtcdCluster

compute_on_one_thread()
pytest_plugins = ("support.quick", "support.run_record", "support.ssh_jobs")
settings.register_profile(  # how long an example takes proves nothing
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

_ROOT = str(Path(__file__).resolve().parents[1])
if _ROOT not in sys.path:  # the benchmarks are not installed, and found after what is
    sys.path.append(_ROOT)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="fault suites at full length")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Full length takes longer than the timeout of pyproject.toml. What tests start must not
    ignore what a shell in the background, or nohup, has this process ignore.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for signo in (signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(signo) is signal.SIG_IGN:
            signal.signal(signo, signal.SIG_DFL)
    if config.getoption("--soak") and config.getoption("timeout") is None:
        config.option.timeout = 3600


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, which would walk over all tests again and again, and
    leave them out of its later walks, here and in forked processes.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Load torch here, with what optimizers load, before ranks are forked, which else each load
    it: that takes most of the time of many tests.
    """
    if item.get_closest_marker("torch") is not None and importlib.util.find_spec("torch"):
        importlib.import_module("torch._dynamo")


@pytest.fixture
def torshrun(tmp_path: Path) -> Iterator[Launcher]:
    """Starts torshrun in a directory of the test's own."""
    with Launcher(tmp_path) as launcher:
        yield launcher


@pytest.fixture
def etcd(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EtcdCluster]:
    """A real one, of so many members as the test's module says by ETCD_MEMBERS, or one."""
    from support.etcd_servers import EtcdCluster, binary_or_skip

    folder = tmp_path / "etcd"
    folder.mkdir()
    size = getattr(request.module, "ETCD_MEMBERS", 1)
    with EtcdCluster(binary_or_skip("3.5"), folder, size) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """No thread, descriptor, child process or /dev/shm entry outlives the test; but for what CUDA
    has opened, which it keeps.
    """
    before = _possessions()
    if request.node.get_closest_marker("gpu") is not None:
        del before["descriptors"]
    yield
    # A thread whose work is done may need a moment to end.
    assert soon(lambda: not _added(before), 2), f"left behind: {_added(before)}"


def _added(before: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is there now of these kinds and was not before."""
    now = _possessions()
    added = {kind: now[kind] - held for kind, held in before.items()}
    added["shared memory"] -= held_by_others(added["shared memory"])
    return {kind: found for kind, found in added.items() if found}


def _possessions() -> dict[str, set[str]]:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {
        "threads": {thread.name for thread in threading.enumerate() if thread.is_alive()},
        "children": set(children),
        "descriptors": _descriptors(),
        "shared memory": named_memory(),
    }


def _descriptors() -> set[str]:
    listed = os.listdir("/proc/self/fd")  # the listing's own is among them, and closed by now
    return {number for number in listed if os.path.lexists(f"/proc/self/fd/{number}")}


@pytest.fixture
def thread_world() -> Callable[..., list[Any]]:
    """run(n, body): body(backend) on n threads, each a rank of one native group."""
    from support.worlds import run_threads

    return run_threads


@pytest.fixture
def process_world() -> Callable[..., list[Any]]:
    """run(n, body, timeout=10): body(rank) in n processes with a default group each."""
    from support.worlds import run_processes

    return run_processes
