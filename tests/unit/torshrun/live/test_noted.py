"""What workers note is counted while their recordings hold it, within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from torsh_runtime.monitoring import layout
from torsh_runtime.monitoring.layout import NOTES
from torsh_runtime.monitoring.notes import Notebook
from torshrun.health.recordings import Recordings
from torshrun.live.noted import MOST_NAMES, Ledger
from torshrun.live.snapshot import Noted


class Node:
    """Two workers' notebooks, which are in their round's file whenever a ledger reads it."""

    def __init__(self, status: Path) -> None:
        self.status = str(status)
        self.path = Path(layout.file_beside(self.status))
        Recordings.make(self.status, 2).close()
        self.memory = [memoryview(bytearray(layout.RECORDING_BYTES)) for _ in range(2)]
        self.notebooks = [Notebook(memory) for memory in self.memory]

    def read(self, ledger: Ledger) -> Noted:
        with self.path.open("r+b") as file:
            for rank, memory in enumerate(self.memory):
                file.seek(layout.HEADER_BYTES + rank * layout.STRIDE)
                file.write(memory)
        return ledger.read(self.status, 2)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "status")


def test_notes_are_counted_once(node: Node) -> None:
    one, other = node.notebooks
    ledger = Ledger()
    for step in range(3):
        one.write("step", value=step)
        one.write("scalar", "step/samples", 32.0)
        one.write("scalar", "step/total", 500.0)
        one.write("scalar", "loss", 1.0 / (step + 1))
        one.write("begin", "data")
        one.write("end", "data")
        first, second = node.read(ledger).workers
    assert (first.steps, first.samples, first.scalars, first.lost) == (3, 96.0, {"loss": 1 / 3}, 0)
    assert first.sections["data"] > 0
    assert (second.steps, second.sections) == (0, {})
    other.write("begin", "forward")
    running = [node.read(ledger).workers[1].sections["forward"] for _ in range(2)]
    assert 0 <= running[0] < running[1]
    other.write("end", "forward")
    assert node.read(ledger).workers[1].sections["forward"] >= running[1]


def test_what_was_overwritten_is_said_to_be_lost(node: Node) -> None:
    one, _ = node.notebooks
    ledger = Ledger()
    one.write("begin", "data")
    node.read(ledger)
    for step in range(NOTES + 10):
        one.write("step", value=step)
    found = node.read(ledger).workers[0]
    assert (found.steps, found.lost) == (NOTES, 10)
    assert "data" not in found.sections  # its end may be among those


def test_names_are_bounded_for_all_workers_together(node: Node) -> None:
    one, other = node.notebooks
    ledger = Ledger()
    for number in range(MOST_NAMES):
        one.write("scalar", f"first {number}", 1.0)
    node.read(ledger)
    for name in ("first 3", "more", "most", "more"):
        other.write("scalar", name, 2.0)
    other.write("begin", "data")
    found = node.read(ledger)
    assert len(found.workers[0].scalars) == MOST_NAMES
    assert found.workers[1].scalars == {"first 3": 2.0}
    assert found.dropped == {"scalar": 2, "section": 0}


def test_a_round_begins_anew(node: Node, tmp_path: Path) -> None:
    one, _ = node.notebooks
    ledger = Ledger()
    one.write("step", value=1)
    before = node.read(ledger)
    assert before.workers[0].steps == 1
    after = Node(tmp_path / "next").read(ledger)
    assert [each.steps for each in after.workers] == [0, 0]
    assert after.since > before.since


def test_nonsense_and_a_file_that_is_gone(node: Node) -> None:
    one, _ = node.notebooks
    ledger = Ledger()
    one.write("step", value=1)
    node.memory[0][:] = b"\xff" * layout.RECORDING_BYTES
    assert node.read(ledger).workers[0].steps == 0
    node.path.unlink()
    assert len(ledger.read(node.status, 2).workers) == 2
    assert ledger.read(str(node.path), 1).workers[0].steps == 0
