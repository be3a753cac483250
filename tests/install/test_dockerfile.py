"""The Dockerfile: by hadolint, and with its steps carried out in minimal Debian trees."""

from __future__ import annotations

import json
import re
import subprocess
from typing import NamedTuple

import pytest
from support.bare_tree import CHECKOUT, BareTree, Done, bare_tree
from support.hosts import needs_hosts
from support.programs import program

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
USER = 10001


class Step(NamedTuple):
    instruction: str
    text: str


def stages() -> list[list[Step]]:
    """The Dockerfile's steps, by stage."""
    text = re.sub(r"(?m)^#.*\n", "", (CHECKOUT / "Dockerfile").read_text())
    lines = filter(None, re.sub(r"\\\n\s*", " ", text).split("\n"))
    found: list[list[Step]] = [[]]
    for line in lines:
        step = Step(*line.split(" ", 1))
        if step.instruction == "FROM":
            found.append([])
        found[-1].append(step)
    return found[1:]


def test_hadolint_has_nothing_to_say() -> None:
    command = [program("hadolint"), CHECKOUT / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_signals_reach_torshrun() -> None:
    """It is process 1: no shell is before it (tests/integration/test_process_one.py)."""
    (entry,) = (step.text for step in stages()[-1] if step.instruction == "ENTRYPOINT")
    assert json.loads(entry) == ["torshrun"]


def test_there_is_no_root_at_the_end() -> None:
    last = [step.text for step in stages()[-1] if step.instruction == "USER"][-1]
    assert last == f"{USER}:{USER}"


class Builder:
    """Carries out steps in a tree, whose checkout stands for the build's context."""

    def __init__(self, tree: BareTree, earlier: BareTree | None = None) -> None:
        self._tree = tree
        self._earlier = earlier
        self.variables = {"PATH": PATH}
        self.folder, self.user = "/", 0

    def carry_out(self, step: Step) -> None:
        """Fails if it does."""
        if step.instruction in ("ARG", "ENV"):
            name, _, value = step.text.partition("=")
            self.variables[name] = value.replace("$PATH", self.variables["PATH"])
        elif step.instruction == "WORKDIR":
            self.folder = step.text
            self.run(f"mkdir -p {step.text}", user=0)
        elif step.instruction == "USER":
            self.user = int(step.text.partition(":")[0])
        elif step.instruction == "COPY":
            self._copy(step.text.split())
        elif step.instruction == "RUN":
            done = self.run(step.text)
            assert done.code == 0, done.output[-3000:]

    def run(self, line: str, user: int | None = None) -> Done:
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        user = self.user if user is None else user
        return self._tree.type(f"cd {self.folder} && {line}", *variables, user=user)

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        if sources[0] == "--from=build":
            assert self._earlier
            self._earlier.copy_to(self._tree, target)
        elif self.folder != "/src":  # where the tree's checkout is already
            (source,) = sources
            done = self.run(f"mkdir -p {target} && cp -r /src/{source}/. {target}")
            assert done.code == 0, done.output


@needs_hosts
@pytest.mark.slow
def test_its_steps_make_a_tree_in_which_torshrun_trains(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--soak"):
        pytest.skip("installs two systems: only with --soak")
    build, run = stages()
    with bare_tree(name="build") as first, bare_tree(USER, "run") as second:
        builder, runner = Builder(first), Builder(second, first)
        for step in build:
            builder.carry_out(step)
        for step in run:
            runner.carry_out(step)
        assert runner.run("command -v g++ || exit 9").code == 9
        done = runner.run("torshrun --nproc-per-node 2 examples/train.py --epochs 5")
        print(f"{done.output}\n{second.bytes >> 20} MiB")
        assert done.code == 0
        assert "test accuracy" in done.output
        done = runner.run("torshctl render slurm -f /src/configs/cluster.yaml")
        assert "#SBATCH --job-name=digits" in done.output
