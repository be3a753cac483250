"""Cloud scripts: each call that they make, as the clouds' own programs understand it."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import yaml
from support.ports import free_port
from support.processes import soon
from support.rendered import EXAMPLE, Stubs, rendered

CLUSTER: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["cluster"]
EXTRAS: dict[str, dict[str, Any]] = {
    "aws": {"key_name": "k", "profile": "p", "spot": True},
    "gcp": {"spot": True},
    "azure": {"spot": True},
}
PROGRAMS = {"aws": "aws", "gcp": "gcloud", "azure": "az"}
NEW = """
case "$*" in
  *describe-subnets*) echo vpc-1 ;;
  *create-security-group*) echo sg-1 ;;
  *"group exists"*) echo false ;;
esac
"""
"""What the clouds answer to who has nothing there yet."""
THERE = r"""
case "$*" in
  *describe-instances*) printf 'i-1\ti-2\n' ;;
  *describe-*) echo torshrun-digits ;;
  *"instances list"*) printf 'torshrun-digits-0\ntorshrun-digits-1\n' ;;
  *" list "*) echo torshrun-digits ;;
  *"group exists"*) echo true ;;
  *"group show"*) echo torshrun-digits ;;
esac
"""
"""And to who has it all."""
RECORD = r"""printf '%s\0' "$@" $'\n' >> "$SEEN.calls" """
REGION = ["--region", "eu-central-1", "ec2"]

Calls = list[list[str]]


def script_of(target: str, folder: Path, **place: Any) -> str:
    changes = {**CLUSTER[target], **EXTRAS[target], **place}
    return rendered(target, folder, cluster={**CLUSTER, target: changes})


def calls(target: str, folder: Path, *commands: tuple[str, str]) -> Calls:
    """The arguments of each call of the cloud's program when these commands get these answers."""
    script, stubs = script_of(target, folder), Stubs(folder)
    for word, answers in commands:
        stubs.write(PROGRAMS[target], RECORD + answers)
        assert stubs.run(script, word) == 0
    startup = folder / "startup"
    startup.write_text("#!/bin/sh\n")
    found = (folder / "seen.calls").read_text().split("\n\0")[:-1]
    temporary = re.compile(r"(\0|=|file://)/[^\0=]*/startup(?=\0)")  # is gone by now
    return [temporary.sub(rf"\1{startup}", call).split("\0")[:-1] for call in found]


def all_calls(target: str, folder: Path) -> Calls:
    return calls(target, folder, ("up", NEW), ("status", THERE), ("up", THERE), ("down", THERE))


@pytest.mark.parametrize("target", PROGRAMS)
def test_what_is_there_is_not_made_again(target: str, tmp_path: Path) -> None:
    text = "\n".join(" ".join(call) for call in calls(target, tmp_path, ("up", THERE)))
    made = {"aws": "run-instances|create-", "gcp": " create ", "azure": "vm create|group create"}
    assert not re.search(made[target], text), text


@pytest.mark.parametrize("target", PROGRAMS)
@pytest.mark.parametrize("word", ["up", "status", "down"])
def test_a_call_that_fails_ends_the_script(target: str, word: str, tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    stubs.write(PROGRAMS[target], RECORD + "\nexit 3")
    assert stubs.run(script_of(target, tmp_path), word) != 0
    assert (tmp_path / "seen.calls").read_text().count("\n\0") == 1


@pytest.mark.parametrize("target", PROGRAMS)
def test_what_it_takes_is_said(target: str, tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    for words in ((), ("start",)):
        assert stubs.run(script_of(target, tmp_path), *words) == 2


def test_azure_leaves_a_group_of_somebody_else_alone(tmp_path: Path) -> None:
    stubs = Stubs(tmp_path)
    answers = 'case "$*" in *"group exists"*) echo true ;; *"group show"*) echo other ;; esac'
    stubs.write("az", f"{RECORD}\n{answers}")
    for word in ("up", "down"):
        assert stubs.run(script_of("azure", tmp_path), word) == 1
    assert "delete" not in (tmp_path / "seen.calls").read_text()


# ---- AWS: by the models of its service that botocore has, in the program's own hands


class Aws:
    """The program aws, in this process, whose requests are checked and answered here."""

    STATE = "<instanceState><name>terminated</name></instanceState>"

    def __init__(self) -> None:
        from awscli.clidriver import create_clidriver

        self._driver = create_clidriver()
        self._driver.session.register("before-send.ec2", self._answer)
        self.requests: list[dict[str, list[str]]] = []

    def run(self, call: list[str]) -> int:
        code = self._driver.main(call)
        assert isinstance(code, int)
        return code

    def _answer(self, request: Any, **_: Any) -> Any:
        from botocore.awsrequest import AWSResponse

        self.requests.append(parse_qs(request.body))
        item = f"<instancesSet><item>{self.STATE}</item></instancesSet>"
        body = f"<R><reservationSet><item>{item}</item></reservationSet></R>".encode()
        raw = io.BytesIO(body)
        raw.stream = lambda **_: iter([body])  # type: ignore[attr-defined]
        return AWSResponse(request.url, 200, {}, raw)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Aws:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    return Aws()


def test_aws_takes_each_call(aws: Aws, tmp_path: Path) -> None:
    for call in all_calls("aws", tmp_path):
        assert aws.run(call) == 0, call
    sent = {request["Action"][0]: request for request in aws.requests}
    assert {"CreatePlacementGroup", "RunInstances", "TerminateInstances"} < sent.keys()
    rule = sent["AuthorizeSecurityGroupIngress"]
    assert rule["GroupId"] == rule["IpPermissions.1.Groups.1.GroupId"] == ["sg-1"]
    assert not [name for name in rule if "IpRanges" in name or "Ipv6Ranges" in name]
    assert sent["RunInstances"]["Placement.GroupName"] == ["torshrun-digits"]


@pytest.mark.parametrize("wrong", [["--nonsense"], ["--filters", "Nam=x"]])
def test_aws_would_refuse_what_is_wrong(aws: Aws, wrong: list[str]) -> None:
    assert aws.run([*REGION, "describe-instances", *wrong]) != 0


@pytest.fixture
def ec2(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """An EC2 of this test's own: aws(*words) asks it."""
    if not request.config.getoption("--soak"):
        pytest.skip("two minutes of starting aws: only with --soak")
    pytest.importorskip("moto", reason="needs an EC2: pip install 'moto[ec2,server]'")
    port = free_port()
    environ = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "HOME": str(tmp_path),
    }
    main = Path(__file__).parents[1] / "support" / "ec2_main.py"
    with subprocess.Popen(
        [sys.executable, main, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:

        def run(*words: str) -> str:
            done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        def is_up() -> bool:
            probe = ["aws", *REGION, "describe-vpcs"]
            return subprocess.run(probe, env=environ, capture_output=True).returncode == 0

        try:
            assert soon(is_up, 180)
            yield run
        finally:
            server.kill()


def test_aws_from_the_first_machine_to_the_last(ec2: Callable[..., str], tmp_path: Path) -> None:
    text = ("--output", "text", "--query")
    subnet = ec2("aws", *REGION, "describe-subnets", *text, "Subnets[0].SubnetId")
    image = ec2("aws", *REGION, "describe-images", *text, "Images[0].ImageId")
    ec2("aws", *REGION, "create-key-pair", "--key-name", "k")
    script = tmp_path / "job.sh"
    script.write_text(script_of("aws", tmp_path, subnet=subnet, image=image, profile=None))
    states = ("aws", *REGION, "describe-instances", *text, "Reservations[].Instances[].State.Name")
    for _ in range(2):
        ec2("bash", str(script), "up")
        assert ec2(*states).split() == ["running", "running"]
    status = ec2("bash", str(script), "status")
    addresses = re.findall(r"torshrun-digits-\d \| +running \| +([\d.]+)", status)
    assert len(addresses) == 2
    ec2("bash", str(script), "down")
    assert ec2(*states).split() == ["terminated", "terminated"]
    left = ("describe-security-groups", *text, "SecurityGroups[].GroupName")
    assert "torshrun-digits" not in ec2("aws", *REGION, *left)


# ---- the other clouds' programs, as far as they go without an account: a call that they do not
# ---- understand ends with 2 before they look for one


def understood(call: list[str], program: str, folder: Path) -> int:
    nowhere = f"http://127.0.0.1:{free_port()}/"
    (folder / "token").write_text("none")
    done = subprocess.run(
        [program, *call],
        env={
            **os.environ,
            "HOME": str(folder),
            "AZURE_CORE_COLLECT_TELEMETRY": "no",
            "CLOUDSDK_CONFIG": str(folder / "gcloud"),
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{nowhere}compute/v1/",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(done.returncode, program, *call, done.stderr[-300:])
    return done.returncode


@pytest.mark.parametrize("target", ["gcp", "azure"])
def test_the_program_understands_each_call(
    target: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("minutes of starting gcloud and az: only with --soak")
    program = shutil.which(PROGRAMS[target])
    if program is None:
        pytest.skip(f"{PROGRAMS[target]} is not installed")
    (folder := tmp_path / "home").mkdir()
    different = dict.fromkeys(map(tuple, all_calls(target, tmp_path)))
    for call in different:
        assert understood([*call], program, folder) == 1
    assert understood([*next(iter(different)), "--nonsense"], program, folder) == 2
