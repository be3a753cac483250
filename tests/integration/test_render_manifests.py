"""Kubernetes manifests and compose files, by the schemas and programs of those who take them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kubernetes_validate.utils import all_versions
from packaging.version import Version
from support.manifests import command, environment, expanded, objects
from support.programs import program
from support.rendered import EXAMPLE, HOSTILE, Stubs, rendered, texts

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
    },
    "compose": {"volumes": ["./data:/work"]},
}
NO_KEYS = {"name": "none", "image": "torshrun"}
POD = {"metadata.labels['batch.kubernetes.io/controller-uid']": "uid", "metadata.name": "pod-0"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("manifests")


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_each_object(version: str, folder: Path) -> None:
    for cluster in (CLUSTER, ALL_KEYS, NO_KEYS):
        for each in objects(rendered("kubernetes", folder, cluster=cluster)).values():
            kubernetes_validate.validate(each, version, strict=True)


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


@pytest.mark.parametrize("target", ["kubernetes", "compose"])
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],
)
@given(argument=texts, value=texts, setup=st.none() | texts.filter(str.strip))
def test_no_text_changes_a_manifest(
    target: str, folder: Path, argument: str, value: str, setup: str | None
) -> None:
    def made(argument: str, value: str, setup: str | None) -> list[Any]:
        text = rendered(
            target,
            folder,
            script=f"x{argument}",
            arguments=[argument],
            environment={"VALUE": value},
            cluster={**CLUSTER, "setup": setup},
        )
        return list(yaml.safe_load_all(text))

    plain, found = made("a", "b", setup and "c"), made(argument, value, setup)
    assert shape(found) == shape(plain)
    if target == "compose":
        node = found[0]["services"]["node"]
        words = [*node["entrypoint"], *node["command"]]
        values = node["environment"]
    else:
        (job,) = (each for each in found if each["kind"] == "Job")
        container = job["spec"]["template"]["spec"]["containers"][0]
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
