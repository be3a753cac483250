"""The pace of a worker, from its notes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from torsh_runtime.monitoring.notes import KINDS, Note
from torsh_runtime.monitoring.pace import Pace, pace_of


def notes(*told: tuple[str, str, float, float]) -> list[Note]:
    return [
        Note(number, kind, name, time, value, 0)
        for number, (kind, name, value, time) in enumerate(told)
    ]


def test_steps_with_a_total_and_samples() -> None:
    found = pace_of(
        notes(
            ("step", "", 10, 1.0),
            ("scalar", "step/total", 100, 1.0),
            ("scalar", "step/samples", 8, 1.0),
            ("scalar", "loss", 0.5, 1.0),
            ("step", "", 11, 1.5),
            ("scalar", "step/samples", 4, 1.5),
            ("scalar", "loss", 0.25, 1.5),
            ("step", "", 12, 2.0),
            ("scalar", "step/samples", 8, 2.0),
        )
    )
    assert found == Pace(12, 100, None, 2.0, 12.0, {"loss": 0.25})


def test_the_pace_is_that_of_the_last_seconds_and_of_one_count() -> None:
    slow = [("step", "", float(step), step * 10.0) for step in range(5)]
    fast = [("step", "", 5.0 + step, 41.0 + step) for step in range(30)]
    assert pace_of(notes(*slow, *fast)).per_second == 1.0
    again = [("step", "", 0.0, 80.0), ("step", "", 1.0, 80.5)]
    assert pace_of(notes(*slow, *fast, *again)).per_second == 2.0
    assert pace_of(notes(("step", "", 0.0, 1.0), ("step", "", 1.0, 100.0))).per_second == 1 / 99


def test_a_bar_tells_where_steps_have_no_total() -> None:
    found = pace_of(
        notes(
            ("scalar", "progress/done", 0, 0.0),
            ("scalar", "progress/total", 50, 0.0),
            ("step", "", 1, 0.5),
            ("scalar", "progress/done", 10, 2.0),
        )
    )
    assert found == Pace(1, 50, 10, 5.0, None, {})


def test_no_notes_are_no_pace() -> None:
    assert pace_of([]) == Pace()


numbers = st.floats(allow_nan=True, allow_infinity=True)
names = st.sampled_from(
    ["", "step/total", "step/samples", "progress/done", "progress/total", "loss", "\x1b["]
)
told = st.tuples(st.sampled_from(KINDS), names, numbers, st.floats(0, 1e9))


@given(st.lists(told, max_size=20))
def test_nonsense_harms_nobody(given: list[tuple[str, str, float, float]]) -> None:
    found = pace_of(notes(*given))
    for value in (found.step, found.total, found.done):
        assert value is None or math.isfinite(value)
