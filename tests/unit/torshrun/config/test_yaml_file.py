"""The file: what it may say, how it is told what is wrong with it, and what wins over it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rendered_examples import NAMES

from torsh_runtime.contract import WorkerEnv
from torsh_runtime.errors import ConfigError
from torshrun.config.job import LaunchConfig, Streams
from torshrun.config.request import gather
from torshrun.config.resolve import resolve
from torshrun.config.yaml_file import LARGEST, read

ROOT = Path(__file__).parents[4]
Written = Callable[[str], str]


def worker(rank: int, local_rank: int) -> WorkerEnv:
    return WorkerEnv(rank=rank, world_size=16, local_rank=local_rank, local_world_size=16)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """written(text): the name of a file with that text, in the current directory."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")

    def write(text: str) -> str:
        Path("job.yaml").write_text(text)
        return "job.yaml"

    return write


def job(path: str, **options: str | None) -> LaunchConfig:
    return resolve(gather({"config": path, **options}, None, (), {}), {}).job


def test_a_complete_file(written: Written) -> None:
    made = job(
        written(
            """\
            script: train.py
            arguments: [--lr, 1e-3, --on, yes, 007, "a b"]
            environment: {FOO: yes, EMPTY: "", 1: 2}
            nproc-per-node: 3
            nnodes: 1:1
            shutdown_timeout: 1.5m
            log_timestamps: on
            tee: {0: 3, r1: 2}
            redirects: 0
            signals_to_handle: [SIGTERM, int]
            local_ranks_filter: [0, 2]
            duplicate_stdout_filters: ["a,b", c]
            rdzv_conf: {join_timeout: 5m, keep_alive_max_attempt: 3}
            metrics_port: 9400
            rdzv-id: "0123"
            """
        )
    )
    assert (made.target, made.kind) == ("train.py", "script")
    assert made.arguments == ("--lr", "1e-3", "--on", "yes", "007", "a b")
    assert made.environment == {"FOO": "yes", "EMPTY": "", "1": "2"}
    assert (made.nproc_per_node, made.shutdown_timeout, made.run_id) == (3, 90.0, "0123")
    assert made.output.log_timestamps
    assert made.output.tee.streams(worker(0, 0)) == Streams.BOTH
    assert made.output.tee.streams(worker(1, 1)) == Streams.STDERR
    assert made.output.local_ranks_filter == {0, 2}
    assert made.output.duplicate_stdout_filters == ("a,b", "c")
    assert made.metrics_port == ("127.0.0.1", 9400)
    assert [signal.name for signal in made.signals_to_handle] == ["SIGTERM", "SIGINT"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("module: pkg.train", "module"),
        ("program: sh", "program"),
        ("script: sh\nno_python: true", "program"),
        ("script: train.py\nrun-path: true", "path"),
    ],
)
def test_kinds(written: Written, text: str, kind: str) -> None:
    settings = gather({"config": written(text)}, None, (), {})
    assert resolve(settings, {"PATH": "/usr/bin:/bin"}).job.kind == kind


def test_a_script_on_the_command_line_takes_the_place_of_the_files(written: Written) -> None:
    path = written("module: pkg.train\narguments: [a]\nmax_restarts: 2")
    made = resolve(gather({"config": path}, "train.py", ["b"], {}), {}).job
    assert (made.target, made.kind, made.arguments) == ("train.py", "script", ("b",))
    assert made.max_restarts == 2


def test_the_command_line_wins_over_the_file_and_that_over_the_environment(
    written: Written,
) -> None:
    path = written("max_restarts: 2\nrole: ~\n")
    environ = {
        "TORSH_CONFIG": path,
        "PET_MAX_RESTARTS": "3",
        "PET_ROLE": "r",
        "PET_NPROC_PER_NODE": "4",
    }
    settings = gather({}, "train.py", (), environ)
    origins = [settings.entries[key].origin for key in ("max_restarts", "nproc_per_node", "tee")]
    assert origins == ["job.yaml:1", "PET_NPROC_PER_NODE", "default"]
    assert settings["max_restarts"] == 2
    assert settings["role"] == "default"  # null, whatever the environment says
    assert gather({"max_restarts": "7"}, "train.py", (), environ)["max_restarts"] == 7


def test_an_empty_file_says_nothing(written: Written) -> None:
    assert read(written("")) == read(written("# nothing\n"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "^job.yaml:1: not YAML: "),
        ("a: 1\nb: 2: 3", "^job.yaml:2: not YAML: mapping values"),
        ("a: &x 1\nb: *y", "^job.yaml:2: not YAML: .*undefined alias"),
        ("role: a\n---\nrole: b", "^job.yaml:2: not YAML: expected a single document"),
        ('role: "\\UFFFFFFFF"', "^job.yaml: not YAML"),
        ("role: \x01", "^job.yaml: not YAML: unacceptable character"),
        ("[" * 5000, "^job.yaml: not YAML"),
        ("- a", "^job.yaml:1: the file must be a mapping .* not a list"),
        ("hello", "^job.yaml:1: the file must be a mapping .* not 'hello'"),
        (
            "role: a\nmax_restart: 3",
            "^job.yaml:2: .* no option max_restart; did you mean max_restarts",
        ),
        ("nproc: 3", "did you mean nproc_per_node"),
        ("<<: {role: a}", "^job.yaml:1: there is no option <<"),
        ("role: a\nrole: b", "^job.yaml:2: role stands in line 1 already"),
        ("run_id: a\nrdzv-id: b", "^job.yaml:2: rdzv-id says the same as run_id in line 1"),
        ("[a]: 1", "^job.yaml:1: a key must be a word, not a list"),
        ("config: x", "^job.yaml:1: config belongs on the command line"),
        ("dry_run: true", "belongs on the command line"),
        ("nproc_per_node: four", "^job.yaml:1: nproc_per_node: 'four' is not a whole number"),
        ("nproc_per_node: 1.5", "^job.yaml:1: nproc_per_node: '1.5' is not a whole number"),
        (
            "nproc_per_node: [1]",
            "^job.yaml:1: nproc_per_node: a list is not possible, give WORKERS",
        ),
        ("standalone: {}", "a mapping is not possible, give true or false"),
        ("standalone: maybe", "^job.yaml:1: standalone: 'maybe' is neither"),
        ("tee: [1]", "a list is not possible, give STREAMS or a mapping"),
        ("signals_to_handle: [[a]]", "a text or a number is wanted, not a list"),
        ("role: no", 'role: no is a boolean here; write "no"'),
        ("rdzv_conf: {timeout: 1, timeout: 2}", "timeout stands in line 1 already"),
        ("rdzv_conf: {timout: 1}", "^job.yaml:1: rdzv_conf: there is no key 'timout'"),
        ("script: a\nmodule: b", "^job.yaml:2: script and module exclude each other"),
        ("script:", "^job.yaml:1: script has no value"),
        ('script: "a\\0b"', "contains what no command line can"),
        ('environment: {A: "\\ud800"}', "contains what no command line can"),
        (f"log_dir: {'x' * 300}", "^job.yaml:1: log_dir: .* cannot be used: File name too long"),
        ("script: [a]", "a text or a number is wanted, not a list"),
        ("module: true", "is a boolean"),
        ("arguments: [a]", "^job.yaml:1: arguments need a script, module or program"),
        ("script: train.py\narguments: a", "^job.yaml:2: arguments must be a list"),
        ("script: train.py\narguments: [~]", "arguments has no value"),
        ("environment: [A]", "environment must be a mapping"),
        ("environment: {A: }", 'A has no value; write ""'),
        ("environment: {A=B: 1}", "'A=B' cannot be a variable's name"),
        ("environment:\n  RANK: 3", "^job.yaml:2: RANK is set by torshrun"),
        ("nnodes: 1:4\nrdzv_backend: tcp", "^job.yaml:1: nnodes: with several nodes"),
        ("module: a\nno_python: true", "^job.yaml:1: module and job.yaml:2: no_python exclude"),
    ],
)
def test_mistakes_are_named_with_their_line(written: Written, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        resolve(gather({"config": written(text)}, None, (), {}), {}, needs_target=False)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        read(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match=r"cannot read .*directory"):
        read(str(tmp_path))
    (tmp_path / "large.yaml").write_bytes(b"#" * (LARGEST + 1))
    with pytest.raises(ConfigError, match="more than 256 KiB"):
        read(str(tmp_path / "large.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"role: a\nrun_id: \xe9\n")
    with pytest.raises(ConfigError, match=r"latin.yaml:2: not text in UTF-8"):
        read(str(tmp_path / "latin.yaml"))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=50,
)
@given(
    content=st.binary(max_size=60)
    | st.text("a:[]{}-&*!|>'\"\\ \n#%@0", max_size=40).map(str.encode)
)
def test_any_file_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    with contextlib.suppress(ConfigError):
        read(str(path))


JOBS = set(ROOT.glob("configs/*.yaml")) - {ROOT / "configs" / name for name in NAMES.values()}


@pytest.mark.parametrize("example", sorted(JOBS), ids=lambda path: path.stem)
def test_the_examples_are_valid(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    complete = read(str(example)).target is not None
    script = None if complete else "examples/train.py"
    resolution = resolve(
        gather({"config": str(example)}, script, (), {}), {"PATH": "/usr/bin:/bin"}
    )
    assert resolution.notes == ()


def test_aliases_do_not_multiply_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    items = ", ".join("x" for _ in range(2000))
    aliases = ", ".join(f"k{number}: *a" for number in range(2000))
    path.write_text(f"script: train.py\ncluster: {{l: &a [{items}], {aliases}}}\n")
    with pytest.raises(ConfigError, match="cluster has more than 10000 values in lists"):
        read(str(path))
