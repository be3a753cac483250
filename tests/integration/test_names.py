"""Hosts whose names are known only after a while, as those of pods are to Kubernetes' DNS."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pytest
from support.hosts import needs_hosts
from support.launcher import Launcher
from support.nodes import Node
from support.ports import free_port

pytestmark = needs_hosts

NAME = "digits-0.digits.invalid"
SUM = """
import numpy as np, torsh_runtime as tr
tr.init_process_group()
total = np.ones(1)
tr.all_reduce(total)
print("sum %g\\n" % total[0], end="", flush=True)
tr.destroy_process_group()
"""
SECRET = "5ec2e7" * 8
MOUNTED = ("hosts", "resolv.conf")


def manifest(rank: int, port: int) -> Mapping[str, str]:
    """The guide's, of an Indexed Job."""
    return {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "JOB_COMPLETION_INDEX": str(rank),
        "TORSH_NNODES": "2",
        "TORSH_RDZV_ENDPOINT": f"{NAME}:{port}",
        "TORSH_RDZV_ID": "uid",
    }


def kubeflow(rank: int, port: int) -> Mapping[str, str]:
    """What its trainer gives to pods."""
    return {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "PET_NNODES": "2",
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": NAME,
        "PET_MASTER_PORT": str(port),
    }


def by_hand(rank: int, port: int) -> Mapping[str, str]:
    """For a script that nothing starts but the pod."""
    meeting = {"MASTER_ADDR": NAME, "MASTER_PORT": str(port)}
    return {"RANK": str(rank), "WORLD_SIZE": "2", **meeting}


@pytest.mark.parametrize("environ", [manifest, kubeflow, by_hand])
def test_who_has_a_name_that_is_not_known_yet_waits_for_it(
    environ: Callable[[int, int], Mapping[str, str]], torshrun: Launcher
) -> None:
    script, hosts = torshrun.script(SUM), torshrun.folder / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    (torshrun.folder / "resolv.conf").touch()
    known = "".join(f"mount --bind {torshrun.folder}/{each} /etc/{each} && " for each in MOUNTED)
    command = f"exec {sys.executable} {script}" if environ is by_hand else 'exec "$@"'
    apart = ("unshare", "--mount", "sh", "-c", known + command, "sh")
    port, nodes = free_port(), list[Node]()
    try:
        for rank in range(2):
            env = {**torshrun.environ, "TORSH_SECRET": SECRET, **environ(rank, port)}
            nodes.append(Node(torshrun.start(script, within=apart, env=env)))
        nodes[0].wait_for(f"waiting for .*{NAME}")
        with hosts.open("a") as file:
            file.write(f"127.0.0.1 {NAME}\n")
        for node in nodes:
            code, output = node.end()
            assert code == 0, output
            assert "sum 2" in output
    finally:
        for node in nodes:
            node.close()
