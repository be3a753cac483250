"""Kubernetes manifests and compose files, by the schemas and programs of those who take them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kubernetes_validate.utils import all_versions
from packaging.version import Version
from support.manifests import (
    command,
    environment,
    expanded,
    objects,
    reconciled,
    restarts_in_place,
)
from support.programs import program
from support.rendered import EXAMPLE, HOSTILE, Stubs, rendered, texts

from torsh_runtime.errors import ConfigError
from torshrun.exit_codes import (
    BUDGET_SPENT,
    CANNOT_EXECUTE,
    LOST,
    NOT_FOUND,
    PREEMPTED,
    SIGNALLED,
    USAGE,
)

CLUSTER: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["cluster"]
VERSIONS = sorted({v for v in all_versions() if Version(v) >= Version("1.29")}, key=Version)
ALL_KEYS: dict[str, Any] = {
    "name": "all",
    "nodes": "2:3",
    "gpus": 8,
    "setup": "echo ready\n",
    "image": "registry.example/torshrun:1",
    "time_limit": "1h",
    "requeue": True,
    "memory": "1GiB",
    "kubernetes": {
        "namespace": "training",
        "etcd_members": 5,
        "storage_class": "fast",
        "claim": "data",
        "service_account": "trainer",
        "pull_secret": "registry",
        "priority_class": "low",
        "user": 1234,
        "labels": ["team=vision", "example.com/stage="],
        "annotations": ["example.com/note=a: b # *c & {d}", "empty="],
        "node_selector": ["cloud.google.com/gke-accelerator=nvidia-l4"],
        "tolerations": ["nvidia.com/gpu", "dedicated=training:NoExecute", "spot:NoSchedule"],
        "gpu_resource": "amd.com/gpu",
        "resources": ["rdma/hca=1", "ephemeral-storage=10Gi"],
        "health_port": 9400,
        "volcano_queue": "research",
    },
    "raycluster": {"ray_version": "2.52.0", "head_cpus": 2, "head_memory": "8GiB"},
    "compose": {"volumes": ["./data:/work"]},
}
NO_KEYS = {"name": "none", "image": "torshrun"}
OF_RUNTIMES = ("health_port", "priority_class", "volcano_queue")
"""Keys that a TrainJob's runtime says."""
CONTROLLED = ("jobset", "trainjob", "raycluster")
"""Targets whose objects Kubernetes does not know without a controller of their own."""
POD = {"metadata.labels['batch.kubernetes.io/controller-uid']": "uid", "metadata.name": "pod-0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifests")


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_each_object(version: str, folder: Path) -> None:
    for cluster in (CLUSTER, ALL_KEYS, NO_KEYS):
        for (kind, _), each in objects(rendered("kubernetes", folder, cluster=cluster)).items():
            if kind != "PodGroup":
                kubernetes_validate.validate(each, version, strict=True)


def keys_of(target: str) -> dict[str, Any]:
    """All keys that the target can have."""
    left_out = {
        "trainjob": OF_RUNTIMES,
        "raycluster": ("health_port",),
    }.get(target, ())
    place = {key: each for key, each in ALL_KEYS["kubernetes"].items() if key not in left_out}
    nodes = 3 if target == "trainjob" else "2:3"
    return {**ALL_KEYS, "nodes": nodes, "kubernetes": place}


@pytest.mark.parametrize("target", CONTROLLED)
def test_kubernetes_takes_what_controllers_make_of_their_objects(target: str, folder: Path) -> None:
    for cluster in (CLUSTER, keys_of(target), NO_KEYS):
        found = reconciled(rendered(target, folder, cluster=cluster))
        for (kind, name), each in found.items():
            if kind == "RayCluster":
                spec = each["spec"]
                templates = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
                pods = [group["template"] for group in templates]
                checked = [{"kind": "Pod", "apiVersion": "v1", **pod} for pod in pods]
            elif kind == "Job":
                checked = [{"kind": "Job", "apiVersion": "batch/v1", **each}]
            elif "kind" in each and kind != "PodGroup":
                checked = [each]
            else:
                continue
            for one in checked:
                one = {"metadata": {"name": name}, **one}
                kubernetes_validate.validate(one, VERSIONS[-1], strict=True)


def pods_of(target: str, text: str) -> list[dict[str, Any]]:
    """Metadata and specifications of the pods of the job's nodes, and of what coordinates them."""
    found = reconciled(text)
    if target == "raycluster":
        (spec,) = (each["spec"] for (kind, _), each in found.items() if kind == "RayCluster")
        return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]
    return [each["spec"]["template"] for (kind, _), each in found.items() if kind == "Job"]


@pytest.mark.parametrize("target", ["kubernetes", *CONTROLLED])
def test_where_pods_are_and_what_they_have(target: str, folder: Path) -> None:
    text = rendered(target, folder, cluster=keys_of(target))
    for place, pod in enumerate(pods_of(target, text)):
        labels, notes = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels.items() >= {"team": "vision", "example.com/stage": ""}.items()
        assert notes["example.com/note"] == "a: b # *c & {d}"
        assert notes["empty"] == ""
        assert pod["spec"]["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
        assert pod["spec"]["tolerations"] == [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoExecute"},
            {"key": "spot", "operator": "Exists", "effect": "NoSchedule"},
        ]
        (container,) = pod["spec"]["containers"]
        if target == "raycluster" and place == 0:
            assert container["resources"]["requests"] == {"cpu": "2", "memory": "8192Mi"}
            continue
        more = {"rdma/hca": "1", "ephemeral-storage": "10Gi"}
        assert container["resources"] == {
            "requests": {"cpu": "2", "memory": "1024Mi", **more},
            "limits": {"memory": "1024Mi", "amd.com/gpu": "8", **more},
        }


def test_probes_ask_the_port_that_torshrun_serves(folder: Path) -> None:
    for target in ("kubernetes", "jobset"):
        (pod,) = pods_of(target, rendered(target, folder, cluster=keys_of(target)))
        (container,) = pod["spec"]["containers"]
        variables = environment(container, POD, {"all": {"secret": ""}})
        assert variables["TORSH_METRICS_PORT"] == ":9400"
        assert container["ports"] == [{"name": "health", "containerPort": 9400}]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/healthz", "port": "health"}
        dies_after = container["livenessProbe"]["periodSeconds"]
        dies_after *= container["livenessProbe"]["failureThreshold"]
        assert dies_after > pod["spec"]["terminationGracePeriodSeconds"]


# ---- queues, and what begins again


def test_a_queue_of_kueue(folder: Path) -> None:
    place = {"kueue_queue": "user-queue", "kueue_priority": "high"}
    wanted = {
        "kueue.x-k8s.io/queue-name": "user-queue",
        "kueue.x-k8s.io/priority-class": "high",
    }
    kinds = {"kubernetes": "Job", "jobset": "JobSet", "trainjob": "TrainJob"}
    for target, kind in {**kinds, "raycluster": "RayCluster"}.items():
        nodes = 3 if target == "trainjob" else "2:3"
        text = rendered(target, folder, cluster={**CLUSTER, "nodes": nodes, "kubernetes": place})
        metadata = objects(text)[kind, "digits"]["metadata"]
        assert metadata["labels"] == wanted
        fewest = {
            "kueue.x-k8s.io/job-min-parallelism": "2",
            "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
        }
        assert metadata.get("annotations") == (fewest if target == "kubernetes" else None)


def test_a_queue_of_volcano(folder: Path) -> None:
    for target in ("kubernetes", "jobset"):
        text = rendered(target, folder, cluster=keys_of(target))
        group = objects(text)["PodGroup", "all"]["spec"]
        assert group == {"minMember": 2, "queue": "research", "priorityClassName": "low"}
        (pod,) = pods_of(target, text)
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "all"
    found = objects(rendered("raycluster", folder, cluster=keys_of("raycluster")))
    assert found["RayCluster", "all"]["metadata"]["labels"]["volcano.sh/queue-name"] == "research"
    assert not [name for kind, name in found if kind == "PodGroup"]  # KubeRay makes it


def test_exit_codes_say_what_a_job_set_does_next(folder: Path) -> None:
    place = {"restart_in_place": True}
    text = rendered("jobset", folder, cluster={**CLUSTER, "kubernetes": place})
    policy = objects(text)["JobSet", "digits"]["spec"]["failurePolicy"]
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet"
    assert "PodFailurePolicy" in rule["onJobFailureReasons"]
    job = reconciled(text)["Job", "digits-node-0"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    final = {
        code
        for each in job["podFailurePolicy"]["rules"]
        if each["action"] == "FailJob"
        for code in each["onExitCodes"]["values"]
    }
    assert final == {USAGE, BUDGET_SPENT, CANNOT_EXECUTE, NOT_FOUND, SIGNALLED + 2}
    in_place = {code for code in range(1, 256) if restarts_in_place(container, code)}
    assert in_place == {PREEMPTED, LOST}
    kubernetes_validate.validate(
        {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, **job["template"]},
        "1.35",
        strict=True,
    )
    once = rendered("jobset", folder, cluster={**CLUSTER, "requeue": False})
    assert objects(once)["JobSet", "digits"]["spec"]["failurePolicy"] == {"maxRestarts": 0}


def test_a_train_job_leaves_to_kubeflow_what_kubeflow_says(folder: Path) -> None:
    for workers, number in ((4, 4), ("gpu", None), (None, 1)):
        text = rendered("trainjob", folder, nproc_per_node=workers, cluster={"kubernetes": {}})
        trainer = objects(text)["TrainJob", "digits"]["spec"]["trainer"]
        assert (trainer["numNodes"], trainer.get("numProcPerNode")) == (2, number)
        names = {each["name"] for each in trainer["env"]}
        assert names == {
            "TORSH_SECRET",
            "TORSH_RUN_ID",
            "OMP_NUM_THREADS",
            "TORSH_SHUTDOWN_TIMEOUT",
        } | (set() if number else {"TORSH_NPROC_PER_NODE"})


def test_what_ray_runs(folder: Path) -> None:
    for changes, told in (
        ({}, "-- python examples/train.py --epochs 20"),
        ({"script": None, "module": "my.driver"}, "-- python -m my.driver --epochs 20"),
        ({"script": None, "program": "-x"}, "-- -x --epochs 20"),
    ):
        text = rendered("raycluster", folder, cluster={**CLUSTER, "setup": "echo a # b"}, **changes)
        assert told in text
        assert "have no effect here, as Ray starts the workers:" in text
        for pod in pods_of("raycluster", text):
            (container,) = pod["spec"]["containers"]
            (setup,) = container["command"]
            line = f"{setup} && echo {container['name']}"  # as KubeRay puts it before its own
            done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
            assert done.stdout.split() == ["a", container["name"]]


@pytest.mark.parametrize(
    ("target", "place", "told"),
    [
        ("kubernetes", {"labels": ["a b=c"]}, "'a b=c' is not NAME=VALUE, as labels are"),
        ("kubernetes", {"labels": ["a=$(id)"]}, "is not NAME=VALUE"),
        ("kubernetes", {"labels": [f"a={'b' * 64}"]}, "is not NAME=VALUE"),
        ("kubernetes", {"labels": [f"{'b' * 64}=a"]}, "is not NAME=VALUE"),
        ("kubernetes", {"labels": ["a=1", "a=2"]}, "labels: a name is given twice"),
        (
            "kubernetes",
            {"labels": ["kueue.x-k8s.io/queue-name=a"], "kueue_queue": "b"},
            "labels: kueue.x-k8s.io/queue-name: another key of the section sets it",
        ),
        (
            "kubernetes",
            {"annotations": ["scheduling.k8s.io/group-name=a"], "volcano_queue": "b"},
            "annotations: scheduling.k8s.io/group-name: another key of the section sets it",
        ),
        ("kubernetes", {"health_port": 29400}, "health_port: 29400 is the port of the rendezvous"),
        ("kubernetes", {"annotations": ["a"]}, "as annotations are"),
        ("kubernetes", {"annotations": ["a=b\nc"]}, "is not one line"),
        ("kubernetes", {"node_selector": ["a=b\nc: d"]}, "is not NAME=VALUE"),
        ("kubernetes", {"tolerations": ["a:Sometimes"]}, "is not a taint like nvidia.com/gpu"),
        ("kubernetes", {"tolerations": ['a", "b']}, "is not a taint like"),
        ("kubernetes", {"resources": ["rdma/hca=lots"]}, "is not NAME=QUANTITY"),
        ("kubernetes", {"resources": ["memory=1Gi"]}, "cpus, memory and gpus of cluster: set it"),
        ("kubernetes", {"kueue_queue": "a: b"}, "'a: b' is not a name"),
        ("kubernetes", {"kueue_queue": "a", "volcano_queue": "b"}, "a job waits in one queue"),
        ("kubernetes", {"kueue_priority": "high"}, "kueue_priority: it needs kueue_queue"),
        ("trainjob", {"volcano_queue": "a"}, "not possible with trainjob: the training runtime"),
        ("trainjob", {"restart_in_place": True}, "restart_in_place: not possible with trainjob"),
        ("raycluster", {"health_port": 9400}, "health_port: not possible with raycluster"),
    ],
)
def test_keys_that_cannot_be(target: str, place: dict[str, Any], told: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        rendered(target, folder, cluster={**CLUSTER, "kubernetes": place})
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("target", "changes", "told"),
    [
        ("trainjob", {"nodes": "1:2"}, "a TrainJob has a fixed number of nodes"),
        ("trainjob", {"trainjob": {"runtime": "A/b"}}, "'A/b' is not a name"),
        ("raycluster", {"raycluster": {"ray_version": "2; x"}}, "'2; x' is not one word"),
        ("raycluster", {"setup": "ray start --head"}, "KubeRay does not start Ray itself"),
        ("jobset", {"image": None}, "for jobset cluster: needs image"),
        (
            "jobset",
            {"requeue": False, "kubernetes": {"restart_in_place": True}},
            "it needs cluster: requeue: true",
        ),
    ],
)
def test_jobs_that_cannot_be(target: str, changes: dict[str, Any], told: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        rendered(target, folder, cluster={**CLUSTER, "kubernetes": {}, **changes})
    assert told in str(raised.value)


def test_a_port_that_is_served_twice(folder: Path) -> None:
    place = {"kubernetes": {"health_port": 9400}}
    with pytest.raises(ConfigError, match="metrics_port sets it already"):
        rendered("kubernetes", folder, metrics_port=":9401", cluster={**CLUSTER, **place})


def test_kubernetes_would_refuse_what_is_wrong(folder: Path) -> None:
    (job,) = [
        o for (kind, _), o in objects(rendered("kubernetes", folder)).items() if kind == "Job"
    ]
    job["spec"]["completion"] = 2
    with pytest.raises(kubernetes_validate.ValidationError, match="completion"):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def test_what_belongs_together_has_the_same_names(folder: Path) -> None:
    found = objects(rendered("kubernetes", folder, cluster=ALL_KEYS))
    pod = found["Job", "all"]["spec"]["template"]["spec"]
    service = found["Service", "all"]["spec"]
    assert pod["subdomain"] == "all"
    assert service["selector"] == {"batch.kubernetes.io/job-name": "all"}
    assert service["publishNotReadyAddresses"] is True
    etcd = found["StatefulSet", "all-etcd"]["spec"]
    assert etcd["selector"]["matchLabels"] == etcd["template"]["metadata"]["labels"]
    assert found["Service", "all-etcd"]["spec"]["selector"] == etcd["selector"]["matchLabels"]
    assert found["PodDisruptionBudget", "all-etcd"]["spec"]["minAvailable"] == 3
    secret = found["Secret", "all"]["stringData"]
    variables = environment(pod["containers"][0], POD, {"all": secret})
    assert re.fullmatch("[0-9a-f]{64}", variables["TORSH_SECRET"])
    assert variables["TORSH_NNODES"] == "2:3"
    assert pod["terminationGracePeriodSeconds"] > int(variables["TORSH_SHUTDOWN_TIMEOUT"])


def test_each_manifest_has_a_secret_of_its_own(folder: Path) -> None:
    secrets = [
        objects(rendered("kubernetes", folder))["Secret", "digits"]["stringData"]["secret"]
        for _ in range(2)
    ]
    assert secrets[0] != secrets[1]


def test_a_secret_and_a_place_of_the_jobs_own_are_left_to_it(folder: Path) -> None:
    text = rendered(
        "kubernetes",
        folder,
        secret_file="/secrets/job",
        rdzv_backend="etcd",
        rdzv_endpoint="etcd:2379",
        run_id="mine",
        cluster={**CLUSTER, "kubernetes": {}},
    )
    found = objects(text)
    assert not [name for kind, name in found if kind == "Secret"]
    container = found["Job", "digits"]["spec"]["template"]["spec"]["containers"][0]
    assert {each["name"] for each in container["env"]} == {
        "OMP_NUM_THREADS",
        "TORSH_NNODES",
        "TORSH_NPROC_PER_NODE",
        "TORSH_RUN_ID",
        "TORSH_SHUTDOWN_TIMEOUT",
    }
    assert "--rdzv-endpoint=etcd:2379" in container["args"]


def shape(value: Any) -> Any:
    """A structure's keys and the types of what it holds."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return [*map(shape, value)] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize("targets", [("kubernetes",), CONTROLLED, ("compose",)])
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],
)
@given(
    argument=texts.filter("--".__ne__),  # it needs another -- before the script
    value=texts,
    setup=st.none() | texts.filter(str.strip),
    note=texts.filter(str.isprintable),
    which=st.integers(0, 2),
)
def test_no_text_changes_a_manifest(
    targets: Sequence[str],
    folder: Path,
    argument: str,
    value: str,
    setup: str | None,
    note: str,
    which: int,
) -> None:
    target = targets[which % len(targets)]
    place = CLUSTER["kubernetes"] if target == "kubernetes" else {}

    def made(argument: str, value: str, setup: str | None, note: str) -> list[Any]:
        text = rendered(
            target,
            folder,
            script=f"x{argument}",
            arguments=[argument],
            environment={"VALUE": value},
            cluster={
                **CLUSTER,
                "setup": setup,
                "kubernetes": {**place, "annotations": [f"note={note}"]},
            },
        )
        return list(yaml.safe_load_all(text))

    plain, found = made("a", "b", setup and "c", "d"), made(argument, value, setup, note)
    assert shape(found) == shape(plain)
    if target == "raycluster":
        (cluster,) = (each for each in found if each["kind"] == "RayCluster")
        assert cluster["metadata"]["annotations"] == {"note": note}
        pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
        values = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        assert expanded(values["VALUE"], {}) == value
        return
    if target == "compose":
        node = found[0]["services"]["node"]
        words = [*node["entrypoint"], *node["command"]]
        values = node["environment"]
    else:
        (job,) = (each for each in found if each["kind"] in ("Job", "JobSet", "TrainJob"))
        assert job["metadata"]["annotations"] == {"note": note}
        (pod,) = pods_of(target, yaml.safe_dump_all(found))
        (container,) = pod["spec"]["containers"]
        words = [*container["command"], *container["args"]]
        values = {each["name"]: each.get("value") for each in container["env"]}
    assert [expanded(word, {}) for word in words[-2:]] == [f"x{argument}", argument]
    assert expanded(values["VALUE"], {}) == value
    if setup:
        lines = setup.strip("\n")
        assert expanded(words[2], {}) == f'set -e\n{lines}\nexec "$@"'


def test_the_container_runs_the_setup_and_then_torshrun(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    changes = {"setup": 'export OTHER="$((1 + 1)) $HOME"'}
    text = rendered("kubernetes", tmp_path, arguments=list(HOSTILE), cluster=CLUSTER | changes)
    found = objects(text)
    container = found["Job", "digits"]["spec"]["template"]["spec"]["containers"][0]
    variables = environment(container, POD, {"digits": {"secret": "5ec2e7"}})
    words = command(container, variables)
    assert words[0] == "bash"
    assert stubs.run('exec "$@"', *words, **variables) == 0
    assert stubs.words() == ["--max-restarts=3", "examples/train.py", *HOSTILE]
    assert stubs.variables()["OTHER"] == f"2 {tmp_path}"


# ---- compose


def compose(path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("docker-compose"), "-f", path, "config", *words],
        env={"PATH": os.environ["PATH"], "HOME": str(path.parent), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_compose_files_follow_its_specification(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    elsewhere = {"rdzv_backend": "etcd", "rdzv_endpoint": "etcd0:2379"}
    for cluster, changes in ((CLUSTER, {}), (ALL_KEYS, {}), (NO_KEYS, {}), (CLUSTER, elsewhere)):
        path.write_text(rendered("compose", tmp_path, cluster=cluster, **changes))
        schema = [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(path)]
        done = subprocess.run(schema, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
        done = compose(path, "--quiet", TORSH_SECRET="5ec2e7")
        assert (done.stdout, done.stderr) == ("", "")


def test_compose_reads_every_text_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    names = {f"V{number}": text for number, text in enumerate(HOSTILE)}
    path.write_text(rendered("compose", tmp_path, arguments=list(HOSTILE), environment=names))
    node = json.loads(compose(path, "--format=json", TORSH_SECRET="5ec2e7").stdout)["services"][
        "node"
    ]
    # What it shows is to be read again, so its dollar signs are doubled once more.
    assert [word.replace("$$", "$") for word in node["command"][3:]] == list(HOSTILE)
    for name, text in names.items():
        assert node["environment"][name].replace("$$", "$") == text
    assert node["environment"]["TORSH_SECRET"] == "5ec2e7"


def test_compose_says_what_to_do_without_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(rendered("compose", tmp_path))
    done = compose(path, "--quiet")
    assert done.returncode != 0
    assert "export TORSH_SECRET=$(openssl rand -hex 32)" in done.stderr
