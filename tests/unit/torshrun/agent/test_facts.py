"""What the machine knows of a port that is taken and of a disk that is full."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from torshrun.agent.facts import fact_about, fact_about_lock
from torshrun.failure.kinds import Kind


def test_who_holds_the_port_is_named_with_its_rank() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        said = f"address already in use, port: {server.getsockname()[1]}"
        held, rank = fact_about(Kind.ADDRESS_IN_USE, said, {os.getpid(): 3})
        assert rank == 3
        port = server.getsockname()[1]
        assert fact_about(Kind.ADDRESS_IN_USE, "in use", {}, port) == (
            held.replace("rank 3, ", ""),
            -1,
        )
        assert "held by rank 3, " in held
        assert f"(pid {os.getpid()})" in held
        assert fact_about(Kind.EXCEPTION, said, {}) == ("", -1)
    assert fact_about(Kind.ADDRESS_IN_USE, said, {}) == ("", -1)
    assert fact_about(Kind.ADDRESS_IN_USE, "in use", {}) == ("", -1)


@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
def test_the_file_system_that_is_full_is_named(tmp_path: Path) -> None:
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    if subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        (tmp_path / "a").write_bytes(bytes(1 << 16))
        said = f"OSError: [Errno 28] No space left on device: '{tmp_path}/b'"
        assert f"at {tmp_path} has 0 B free of 64 KiB" in fact_about(Kind.DISK_FULL, said, {}).text
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_who_held_a_lock_is_named_with_its_rank_if_a_worker_had_started_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        ranks = {os.getpid(): 2}
        assert fact_about_lock("/data/x.lock", child.pid, ranks) == (
            f"The lock of /data/x.lock was held by rank 2, sleep (pid {child.pid}).",
            2,
        )
        assert fact_about_lock("/data/x.lock", child.pid, {}).rank == -1
        child.kill()
    gone = fact_about_lock("x", child.pid, {child.pid: 1})
    assert gone == (f"The lock of x was held by rank 1, a process (pid {child.pid}).", 1)
