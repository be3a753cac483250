"""TORSH_LOG: what a job's agent and workers write of their changes of state."""

from __future__ import annotations

import re

from support.blocks import shown
from support.launcher import Launcher
from support.ports import free_ports

FAILS_ONCE = (
    "import os, sys, time\n"
    "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
    "    sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(60)\n"
)


def changes(text: str) -> list[str]:
    """The lines of agent and workers, without their times."""
    return re.findall(r"^\S+Z (DEBUG torsh\.(?:agent|workers): .*)$", text, re.MULTILINE)


def test_the_guide_shows_what_an_agent_writes(torshrun: Launcher) -> None:
    (torshrun.folder / "train.py").write_text(FAILS_ONCE)
    torshrun.environ["TORSH_LOG"] = "debug"
    code, _, err = torshrun.run("--nproc-per-node", "2", "--max-restarts", "1", "train.py")
    assert code == 0
    assert changes(err) == changes(shown("docs/debugging.md", "$ TORSH_LOG=debug"))


def test_workers_lines_are_theirs_and_the_agents_go_to_no_file(torshrun: Launcher) -> None:
    script = "import torsh_runtime as tr\ntr.init_process_group()\ntr.destroy_process_group()\n"
    (torshrun.folder / "train.py").write_text(script)
    torshrun.environ["TORSH_LOG"] = "debug"
    code, _, err = torshrun.run(
        "--nproc-per-node", "2", "--tee", "3", "--log-dir", "logs", "train.py"
    )
    assert code == 0
    assert re.search(r"^\[1\] \S+Z DEBUG torsh\.default_group: meeting -> ready", err, re.M)
    for rank in (0, 1):
        [kept] = torshrun.folder.glob(f"logs/*/attempt_0/{rank}/stderr.log")
        lines = kept.read_text().splitlines()
        assert lines
        assert all(line.endswith(f"round 0, rank {rank})") for line in lines)
        assert "torsh.agent" not in kept.read_text()


def test_no_job_starts_with_a_word_that_is_no_level(torshrun: Launcher) -> None:
    torshrun.environ["TORSH_LOG"] = "verbose"
    code, _, err = torshrun.run("train.py")
    assert code == 2
    assert err == (
        "torshrun: error: TORSH_LOG=verbose is no level: give debug, info, warning, error or "
        "critical, or unset it\n"
    )


def test_nodes_tell_who_leads_and_what_becomes_of_the_round(torshrun: Launcher) -> None:
    script, [port] = torshrun.script(""), free_ports(1)
    torshrun.environ["TORSH_LOG"] = "debug"
    meeting = ("--rdzv-backend", "tcp", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "j")
    nodes = [torshrun.start("--nnodes", "2", *meeting, script) for _ in range(2)]
    texts = [node.communicate(timeout=60)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    for text in texts:
        members = re.findall(r"torsh\.member: (.*) \(round 0, ", text)
        assert members[:4] == [
            "waiting -> entering",
            "entering -> inside",
            "inside -> reported",
            "reported -> over",
        ]
        assert "torsh.grant: none -> held (for " in text
    leaders = [text for text in texts if "torsh.election: standing -> leading (fence " in text]
    assert len(leaders) == 1
    led = re.findall(r"torsh\.leader: (.*?) \(", leaders[0])
    assert led == ["no round -> round open", "round open -> over"]
