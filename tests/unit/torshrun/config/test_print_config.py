"""--print-config: origins, and that its output is a file that says the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torshrun.config.print_config import show
from torshrun.config.request import gather
from torshrun.config.resolve import resolve

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


def test_every_value_and_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("# a job\nmax_restarts: 3\nenvironment: {A: yes}\n")
    environ = {"PET_NNODES": "1:1"}
    given_ = {"config": str(file), "nproc_per_node": "2", "log_timestamps": "true"}
    lines = show(gather(given_, "train.py", ["--on", "yes"], environ)).splitlines()

    def origin(start: str) -> str:
        (line,) = (line for line in lines if line.startswith(start))
        return line.split("  # ")[1]

    assert origin("max_restarts: 3 ") == f"{file}:2"
    assert origin("nproc_per_node: 2 ") == "command line"
    assert origin("log_timestamps: true ") == "command line"
    assert origin("nnodes: '1:1' ") == "PET_NNODES"
    assert origin("#tee: 0 ") == "default"
    assert origin("#master_port: null ") == "default: a free one for each start; to meet 29500"
    assert origin("script: train.py ") == "command line"
    assert origin("  - 'yes' ") == "command line"
    assert origin("  A: 'yes' ") == f"{file}:3"
    columns = {line.index("  # ") for line in lines if "  # " in line and len(line) < 90}
    assert len(columns) == 1


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=60,
)
@given(
    role=TEXTS.filter(str.strip),
    arguments=st.lists(TEXTS),
    phrases=TEXTS,
    variables=st.dictionaries(st.text("aÄ_1: #'", min_size=1, max_size=4), TEXTS, max_size=3),
)
def test_the_output_says_the_same_as_a_file(
    tmp_path: Path, role: str, arguments: list[str], phrases: str, variables: dict[str, str]
) -> None:
    import yaml

    script, file = tmp_path / "train.py", tmp_path / "job.yaml"
    script.write_text("")
    file.write_text(yaml.safe_dump({"environment": variables, "script": str(script)}))
    given_ = {
        "config": str(file),
        "role": role,
        "duplicate_stdout_filters": phrases,
        "nproc_per_node": "3",
        "tee": "0:1,r1:3",
        "rdzv_backend": "tcp",
        "log_line_prefix_template": "${rank}: ",
        "standalone": "true",
        "run_id": "0x10",
    }
    once = gather(given_, str(script), arguments, {})
    again = tmp_path / "again.yaml"
    again.write_text(show(once))
    twice = gather({"config": str(again)}, None, (), {"PET_ROLE": "another"})
    assert resolve(twice, {}).job == resolve(once, {}).job


@pytest.mark.parametrize(
    "options",
    [
        {"standalone": "true"},
        {"rdzv_endpoint": "n1:29500"},
        {"rdzv_backend": "c10d", "rdzv_conf": "timeout=1"},
        {"run_path": "true"},
    ],
)
def test_a_printed_default_is_no_request(tmp_path: Path, options: dict[str, str]) -> None:
    script, again = tmp_path / "train.py", tmp_path / "again.yaml"
    script.write_text("")
    once = gather(options, str(script), (), {})
    again.write_text(show(once))
    twice = gather({"config": str(again)}, None, (), {})
    first, second = (resolve(settings, {}, new_id=lambda: "new") for settings in (once, twice))
    assert second == first
    assert second.notes == ()


def test_what_a_file_sets_back_to_the_default_stays_so(tmp_path: Path) -> None:
    file, again = tmp_path / "job.yaml", tmp_path / "again.yaml"
    file.write_text("max_restarts: null\nmaster_port: null\n")
    again.write_text(show(gather({"config": str(file)}, None, (), {})))
    environ = {"PET_MAX_RESTARTS": "3", "TORSH_MASTER_PORT": "1", "PET_ROLE": "r"}
    twice = gather({"config": str(again)}, None, (), environ)
    assert (twice["max_restarts"], twice["master_port"], twice["role"]) == (0, None, "r")


@pytest.mark.parametrize("key", ["module", "program"])
def test_modules_and_programs_come_back(tmp_path: Path, key: str) -> None:
    file, again = tmp_path / "job.yaml", tmp_path / "again.yaml"
    file.write_text(f"{key}: sh\n")
    once = gather({"config": str(file)}, None, (), {})
    again.write_text(show(once))
    twice = gather({"config": str(again)}, None, (), {})
    path = {"PATH": "/usr/bin:/bin"}
    first, second = (resolve(one, path, new_id=lambda: "new") for one in (once, twice))
    assert second == first
