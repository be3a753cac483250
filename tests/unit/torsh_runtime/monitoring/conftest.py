"""A process's own recording, anew for each test."""

from collections.abc import Callable, Iterator

import pytest

from torsh_runtime.monitoring import calls, marks, progress_bar, recording, session
from torsh_runtime.monitoring.notes import Note, notes_of


@pytest.fixture
def noted() -> Iterator[Callable[[], list[Note]]]:
    """What was noted since the test began."""
    caches = (
        recording.own_recording,
        marks.own_marks,
        progress_bar._bars,
        session._running,
        calls.own_calls,
    )
    for each in caches:
        each.cache_clear()

    def read() -> list[Note]:
        own = recording.own_recording()
        assert own is not None
        return notes_of(own.words(), own.words())

    yield read
    for each in caches:
        each.cache_clear()
