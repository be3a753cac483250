"""Notes facts about groups in the recording of operations (torsh_runtime/monitoring).

Beside the compiled groups' own operations these are operations of other libraries, launches of
several operations together, and the members of a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from torsh_runtime.backends.operation import Op, PremulSum, ReduceOp
from torsh_runtime.enumerations import DTYPES, PATHS
from torsh_runtime.errors import BackendUnavailable
from torsh_runtime.monitoring.layout import RECORDED
from torsh_runtime.monitoring.notes import Group, ranges
from torsh_runtime.monitoring.recording import Recording, own_recording
from torsh_runtime.status import number_of

if TYPE_CHECKING:
    from torsh_runtime.backends.native._native import LibraryOperation

_BYTES: Final = DTYPES.index("uint8")
_DTYPES: Final = {name: number for number, name in enumerate(DTYPES)}
_KINDS: Final = {name: number for number, name in enumerate(RECORDED)}


def opened() -> Recording | None:
    """Return this process's recording, opened for writing by the compiled library.

    Returns None if nothing is recorded or there is no such library.
    """
    recording = own_recording()
    if recording is not None and not recording.is_open:
        with suppress(BackendUnavailable):
            from torsh_runtime.backends.native.compiled import _native

            _native.open_recording(recording.memory)
            recording.notebook.write_by(_native.NoteWriter(recording.memory).write)
            recording.is_open = True
    return recording if recording is not None and recording.is_open else None


def note_group(name: str, size: int, ranks: Sequence[int]) -> None:
    """Note the members of a group by name: ranks of the job, or () if they are unknown."""
    recording = own_recording()
    if recording is not None:
        recording.notebook.name_group(Group(number_of(name), size, "", ranges(ranks)))


def note_title(name: str, title: str) -> None:
    """Tell people's own name of the group of this name, such as the axis of a mesh."""
    recording = own_recording()
    if recording is not None and title:
        recording.notebook.title_group(number_of(name), title)


class GroupRecorder:
    """Notes the operations of one group. Any thread; forks note nothing."""

    def __init__(self, recording: Recording, place: int, name: str, size: int, path: str) -> None:
        """Record operations of the group `name` of `size` ranks.

        `path` is an entry of PATHS, or "" if it is unknown.
        """
        from torsh_runtime.backends.native.compiled import _native

        number, way = number_of(name), PATHS.index(path) + 1 if path else 0
        self._native = _native
        self._made = _native.LibraryRecorder(recording.memory, place, number, size, way)
        self._messages: Counter[tuple[str, int]] = Counter()
        self._batches = 0

    @classmethod
    def of(cls, name: str, size: int, path: str) -> GroupRecorder | None:
        """Return a recorder for a group of a library, or None if nothing is recorded."""
        recording = opened()
        if recording is None:
            return None
        return cls(recording, recording.next_place(), name, size, path)

    @classmethod
    def of_batches(cls, name: str, size: int) -> GroupRecorder | None:
        """Return a recorder for batches of a group, or None if nothing is recorded."""
        recording = opened()
        return None if recording is None else cls(recording, 0, name, size, "")

    def enter(
        self,
        op: Op,
        sequence: int,
        in_background: bool = False,
        measured: tuple[int, int, int] | None = None,
    ) -> NotedOperation:
        """Note that an operation begins.

        `measured` is the number of its dtype, its elements and its bytes, if they are known.
        """
        dtype, count, nbytes = measured or _measured(op.measured)
        how = op.reduction
        reduction = ReduceOp.PREMUL_SUM if isinstance(how, PremulSum) else how
        entry = self._native.LibraryOperation(
            self._made,
            _KINDS[op.kind],
            dtype,
            int(reduction),
            -1 if op.peer is None else op.peer,
            count,
            nbytes,
            sequence,
            in_background,
        )
        return NotedOperation(self, op.kind, entry, sequence, in_background)

    def enter_message(self, op: Op, in_background: bool) -> NotedOperation:
        """Note that a message begins.

        Libraries do not report which message it is: those to or from the same rank are counted in
        the order of their calls.
        """
        number = 0 if op.peer is None else self.count(op.kind, op.peer)
        return self.enter(op, number, in_background)

    def count(self, operation: str, peer: int) -> int:
        """Count a message to or from `peer` and return its number."""
        self._messages[operation, peer] += 1
        return self._messages[operation, peer]

    def enter_wait(self, awaited: NotedOperation) -> LibraryOperation:
        """Note a wait for the operation, which leave(has_failed) of the result ends."""
        return self._native.LibraryOperation(
            self._made, _KINDS["wait"], 0, 0, -1, awaited.entry, 0, awaited.sequence, False
        )

    @contextmanager
    def batch(self, count: int) -> Iterator[None]:
        """Note the launch of `count` operations together, within the block."""
        self._batches += 1
        entry = self._native.LibraryOperation(
            self._made, _KINDS["batch"], 0, 0, -1, count, 0, self._batches, False
        )
        try:
            yield
        except BaseException:
            entry.leave(True)
            raise
        entry.leave(False)


class NotedOperation:
    """Represents an operation in the recording that has begun."""

    def __init__(
        self,
        recorder: GroupRecorder,
        operation: str,
        entry: LibraryOperation,
        sequence: int,
        in_background: bool,
    ) -> None:
        self._recorder = recorder
        self._operation = operation
        self._entry = entry
        self.sequence = sequence
        self.in_background = in_background
        self.entry: int = entry.entry

    def leave(self, has_failed: bool, source: int | None = None) -> None:
        """Note that the operation is over.

        `source` is the sender of a message that was received from any rank.
        """
        if source is not None and not self.sequence and self._operation == "recv":
            self.sequence = self._recorder.count("recv", source)
            self._entry.tell(source, self.sequence)
        self._entry.leave(has_failed)

    def cancel(self) -> None:
        """Remove the operation from the recording: it was refused before it began."""
        self._entry.cancel()

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Note a wait for the operation within the block, if it runs in the background."""
        if not self.in_background:
            yield
            return
        wait = self._recorder.enter_wait(self)
        try:
            yield
        except BaseException:
            wait.leave(True)
            raise
        wait.leave(False)


def _measured(arrays: object) -> tuple[int, int, int]:
    """Return the number of the dtype, and the numbers of elements and bytes.

    Arrays of an unknown dtype are measured in bytes; other objects have 0.
    """
    if isinstance(arrays, list | tuple):
        each = [_measured(array) for array in arrays]
        kind = each[0][0] if each else _BYTES
        return kind, sum(count for _, count, _ in each), sum(nbytes for *_, nbytes in each)
    array: Any = arrays
    name = str(getattr(array, "dtype", "")).removeprefix("torch.")
    nbytes = getattr(array, "nbytes", 0)
    if name not in _DTYPES:
        return _BYTES, nbytes, nbytes
    count = array.numel() if hasattr(array, "numel") else array.size
    return _DTYPES[name], count, nbytes
