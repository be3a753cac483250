"""The containers of rendered Kubernetes manifests, run as a kubelet would: each pod with a network,
a host name and an /etc/hosts of its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.etcd_servers import binary_or_skip
from support.hosts import Host, needs_hosts, plugged
from support.launcher import Launcher
from support.manifests import Manifest, command, environment, reconciled, restarts_in_place
from support.nodes import QUICK, Node
from support.processes import soon
from support.rendered import EXAMPLE, rendered

from torshrun.exit_codes import PREEMPTED

pytestmark = [needs_hosts, pytest.mark.netns]

CLUSTER: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["cluster"]
UID = "4c2e1f0a"
TRAINING = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("place", rank, os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RUN_ID"], flush=True)
while not os.path.exists("go"): time.sleep(0.01)
"""
_POD = """
mount --bind "$1" /etc/hosts
hostname "$2"
shift 2
exec "$@"
"""


class Cluster:
    """The pods of a manifest, each on a host of its own. Ends by with."""

    def __init__(self, launcher: Launcher, text: str, hosts: list[Host]) -> None:
        self._folder = launcher.folder
        self._environ = launcher.environ
        self._objects = reconciled(text)
        names = [*self._pods("StatefulSet"), *self._pods("Job")]
        self._hosts = dict(zip(names, hosts, strict=True))
        self._nodes: list[Node] = []
        lines = (f"{self._hosts[pod].ipv4} {self._known_as(pod)} {pod}\n" for pod in names)
        (self._folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.close()

    def start(self, pod: str) -> Node:
        """Start this pod, or another one in its place."""
        container = self.container(pod)
        fields = {
            "metadata.name": pod,
            "metadata.labels['batch.kubernetes.io/controller-uid']": UID,
            "metadata.annotations['batch.kubernetes.io/job-completion-index']": pod[-1],
        }
        secrets = {n: each["stringData"] for (k, n), each in self._objects.items() if k == "Secret"}
        variables = environment(container, fields, secrets)
        words = command(container, variables)
        data = str(self._folder / f"data-{pod}")
        words = [word.replace("/data", data) for word in words]
        apart = ["unshare", "--mount", "--uts", "sh", "-ec", _POD, "pod"]
        process = subprocess.Popen(
            [*self._hosts[pod].command, *apart, str(self._folder / "hosts"), pod, *words],
            cwd=self._folder,
            env={**self._environ, **variables, "PATH": f"{self._folder}/bin:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._nodes.append(Node(process))
        return self._nodes[-1]

    def container(self, pod: str) -> Manifest:
        (found,) = self._spec(pod)["template"]["spec"]["containers"]
        return dict(found)

    def _pods(self, kind: str) -> list[str]:
        """The names of those that a controller of this kind makes."""
        return [
            f"{name}-{number}"
            for (its_kind, name), each in self._objects.items()
            if its_kind == kind
            for number in range(each["spec"].get("replicas") or each["spec"]["completions"])
        ]

    def _spec(self, pod: str) -> Manifest:
        owner = pod.rpartition("-")[0]
        kinds = ("Job", "StatefulSet")
        (found,) = (self._objects[kind, owner] for kind in kinds if (kind, owner) in self._objects)
        spec: Manifest = found["spec"]
        return spec

    def _known_as(self, pod: str) -> str:
        """What the cluster's DNS calls it, by its Service."""
        spec = self._spec(pod)
        service = spec.get("serviceName") or spec["template"]["spec"]["subdomain"]
        assert self._objects["Service", service]["spec"]["clusterIP"] == "None"
        return f"{pod}.{service}.default.svc.cluster.local {pod}.{service}"


@pytest.fixture
def programs(torshrun: Launcher) -> None:
    """The image's."""
    folder = torshrun.folder / "bin"
    folder.mkdir()
    (folder / "torshrun").symlink_to(Path(sys.executable).with_name("torshrun"))
    (folder / "etcd").symlink_to(binary_or_skip("3.5"))


def manifest(torshrun: Launcher, members: int) -> str:
    cluster = CLUSTER | {"nodes": "1:2", "kubernetes": {"etcd_members": members}}
    return rendered(
        "kubernetes",
        torshrun.folder,
        script=torshrun.script(TRAINING),
        arguments=None,
        nproc_per_node=1,
        rdzv_conf=QUICK,
        cluster=cluster,
    )


@pytest.mark.parametrize("target", ["jobset", "trainjob"])
def test_pods_of_controllers_meet_and_restart_in_place(
    torshrun: Launcher, programs: None, target: str
) -> None:
    """When one pod is deleted, those of a job that needs all of them leave, too: with JobSet they
    stay where they are, and with both meet the pod that takes its place.
    """
    in_place = target == "jobset"
    text = rendered(
        target,
        torshrun.folder,
        script=torshrun.script(TRAINING),
        arguments=None,
        nproc_per_node=1,
        rdzv_conf=QUICK,
        cluster=CLUSTER | {"kubernetes": {"restart_in_place": in_place}},
    )
    with plugged(2) as hosts, Cluster(torshrun, text, hosts) as cluster:
        pods = [f"digits-node-0-{number}" for number in range(2)]
        first, second = map(cluster.start, pods)
        for node in (first, second):
            node.wait_for(rf"place \d 2 {UID}")
        second.send(signal.SIGTERM)
        assert [node.end()[0] for node in (first, second)] == [PREEMPTED, PREEMPTED]
        assert restarts_in_place(cluster.container(pods[0]), PREEMPTED) == in_place
        again = [cluster.start(pod) for pod in pods]
        for node in again:
            node.wait_for(rf"place \d 2 {UID}")
        torshrun.make("go")
        assert [node.end()[0] for node in again] == [0, 0]


def rounds_of_two(pod: Node) -> int:
    return len(re.findall(r"place \d 2 ", pod.output))


def test_a_job_that_meets_at_its_first_pod(torshrun: Launcher, programs: None) -> None:
    text = manifest(torshrun, 0)
    with plugged(2) as hosts, Cluster(torshrun, text, hosts) as cluster:
        first, second = (cluster.start(f"digits-{number}") for number in range(2))
        for pod in (first, second):
            pod.wait_for(rf"place \d 2 {UID}")
        second.send(signal.SIGTERM)
        assert second.end()[0] == PREEMPTED
        first.wait_for("place 0 1 ")
        another = cluster.start("digits-1")
        another.wait_for(r"place \d 2 ")
        assert soon(lambda: rounds_of_two(first) == 2, 30), first.output
        torshrun.make("go")
        assert [pod.end()[0] for pod in (first, another)] == [0, 0]


def test_a_job_with_an_etcd_bears_the_loss_of_any_pod(torshrun: Launcher, programs: None) -> None:
    text = manifest(torshrun, 3)
    with plugged(5) as hosts, Cluster(torshrun, text, hosts) as cluster:
        etcd = [cluster.start(f"digits-etcd-{number}") for number in range(3)]
        first, second = (cluster.start(f"digits-{number}") for number in range(2))
        for pod in (first, second):
            pod.wait_for(rf"place \d 2 {UID}", 60)
        etcd[0].send(signal.SIGKILL)
        first.send(signal.SIGTERM)
        assert first.end()[0] == PREEMPTED
        second.wait_for(r"place \d 1 ")
        another = cluster.start("digits-0")
        another.wait_for(r"place \d 2 ")
        assert soon(lambda: rounds_of_two(second) == 2, 30), second.output
        again = cluster.start("digits-etcd-0")
        again.wait_for("ready to serve client requests")
        torshrun.make("go")
        assert [pod.end()[0] for pod in (second, another)] == [0, 0]
