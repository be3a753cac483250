"""Words a hang: which ranks wait in what, which have not come, and where all are in the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torshrun.health.detector import Hang, RankState, find, is_waiting, waited_group
from torshrun.health.pages import Collective
from torshrun.text import format_ranks, printable

MOST_STACKS = 8
"""Different stacks that are shown."""
MOST_PLACES = 8
"""Places in a mesh that are shown of ranks in the same situation."""
MOST_LINES = 60
"""Lines of one stack that are shown."""


def describe(hang: Hang, stacks: Mapping[int, str], hint: str = "") -> str:
    """Return the report, in lines. `stacks` are by rank; `hint` says why some are missing."""
    lines = [summary(hang), *_situations(hang), *_stack_lines(hang, stacks)]
    return "\n".join([*lines, f"  {hint}"] if hint else lines)


def summary(hang: Hang) -> str:
    """Return who waits in what, and for whom, in one line."""
    text = f"no progress for {hang.seconds:.0f} s: "
    waited = waited_group(hang.ranks)
    if waited is None:
        awaiting = next((state for state in _longest_first(hang) if state.awaits), None)
        if awaiting is None:
            return text + "no output and no CPU use of any worker"
        return f"{text}{_called(hang, awaiting.sample.rank)}, {_awaits(hang, awaiting)}{_end(hang)}"
    waiting = _ranks_in(hang, waited)
    text += f"{format_ranks(waiting)} wait{'s' if len(waiting) == 1 else ''} in {numbered(waited)}"
    if hang.suspect not in waiting:
        return text + _for_whom(hang, waited)
    elsewhere = len(waiting) == len(hang.ranks) < waited.ranks
    return text + (" for ranks of other nodes" if elsewhere else "")


def _for_whom(hang: Hang, waited: Collective) -> str:
    """Return words for the suspect, which may be in a different group, or wait in a circle."""
    having = [s.sample.rank for s in hang.ranks if find(s.sample.status, waited.group)]
    waits = [state.sample.rank for state in hang.ranks if is_waiting(state)]
    is_behind = hang.suspect in having or len(having) < waited.ranks
    itself = ", which waits for others itself" if hang.suspect in waits else ""
    link = " for" if is_behind else ", and at the end all for"
    return f"{link} {_called(hang, hang.suspect)}{itself}"


def _longest_first(hang: Hang) -> list[RankState]:
    return sorted(hang.ranks, key=lambda state: -state.seconds)


def _called(hang: Hang, rank: int) -> str:
    """Return a text such as "rank 3, pp 1, tp 1", with the rank's place in a mesh if known."""
    place = next((each.sample.status.place for each in hang.ranks if each.sample.rank == rank), "")
    return f"rank {rank}, {place}" if place else f"rank {rank}"


def _awaits(hang: Hang, state: RankState) -> str:
    """Return a text such as "waits for F5 of stage 0 (rank 1, pp 0, tp 1)"."""
    awaited = state.awaits
    if awaited is None:
        return ""
    sent = f", which has sent one with tag={awaited.instead}" if awaited.instead >= 0 else ""
    return f"{awaited.what} ({_called(hang, awaited.rank)}{sent})"


def _end(hang: Hang) -> str:
    """Return words for the rank at the end of the chain of those that wait for one another."""
    awaited = {state.awaits.rank for state in hang.ranks if state.awaits}
    is_said = awaited == {hang.suspect}
    return "" if is_said else f", and at the end all for {_called(hang, hang.suspect)}"


def _ranks_in(hang: Hang, waited: Collective) -> list[int]:
    place = (waited.group, waited.sequence)
    inside = ((state.sample.rank, state.waits_in) for state in hang.ranks)
    return [rank for rank, each in inside if each and (each.group, each.sequence) == place]


def _situations(hang: Hang) -> list[str]:
    """Return one line for all ranks in the same situation; the suspect's comes first."""
    waited = waited_group(hang.ranks)
    alike: dict[tuple[str, str], list[RankState]] = defaultdict(list)
    for state in _suspect_first(hang):
        does = _awaits(hang, state) or _situation(state, waited)
        alike[does, _particulars(state)].append(state)
    return [_line(hang, *situation, states) for situation, states in alike.items()]


def _suspect_first(hang: Hang) -> list[RankState]:
    return sorted(hang.ranks, key=lambda state: state.sample.rank != hang.suspect)


def _line(hang: Hang, does: str, details: str, states: Sequence[RankState]) -> str:
    least, most = (f"{pick(state.seconds for state in states):.0f}" for pick in (min, max))
    seconds = f"{least} s" if least == most else f"{least} to {most} s"
    who = format_ranks([state.sample.rank for state in states])
    places = [state.sample.status.place for state in states]
    if len(states) == 1:
        who = _called(hang, states[0].sample.rank)
    elif all(places):
        who += f" ({'; '.join(places[:MOST_PLACES])}{'; …' if len(places) > MOST_PLACES else ''})"
    time = f" for {seconds}" if is_waiting(states[0]) else ""
    return f"  {who}: {does}{time}{details}"


def _situation(state: RankState, waited: Collective | None) -> str:
    status = state.sample.status
    if state.waits_in is not None:
        return f"in {numbered(state.waits_in)}"
    nowhere = "in no collective" if status.initialised else "in no collective of torsh_runtime"
    before = "ended" if not state.sample.alive else nowhere if waited is None else ""
    last = status.collective if waited is None else find(status, waited.group)
    if last is None:
        return before or ("in another group" if status.initialised else "not initialised")
    if waited is not None and last.sequence >= waited.sequence:
        return before or f"past it, after {numbered(last)}"
    return f"{before or 'not in it yet'}, last in {numbered(last)}"


def _particulars(state: RankState) -> str:
    step, doing = state.sample.status.step, state.sample.status.doing
    held = {"T": "; its process is stopped (SIGCONT continues it)", "t": "; held by a debugger"}
    text = f"; {doing}" if doing and not state.awaits else ""
    text += f"; step {step}" if step is not None else ""
    return text + held.get(state.sample.state, "")


def _stack_lines(hang: Hang, stacks: Mapping[int, str]) -> list[str]:
    """Return lines that show equal stacks once; the suspect's is the first."""
    alike: dict[str, list[int]] = defaultdict(list)
    for state in _suspect_first(hang):
        text = stacks.get(state.sample.rank, "")
        if text:
            alike[text].append(state.sample.rank)
    lines = []
    for text, ranks in list(alike.items())[:MOST_STACKS]:
        shown = [printable(line) for line in text.splitlines()]
        if len(shown) > MOST_LINES:
            shown[MOST_LINES:] = [f"{len(shown) - MOST_LINES} more lines"]
        lines.append(f"  stack of {format_ranks(ranks)}, most recent call first:")
        lines += [f"    {line}" for line in shown]
    left = len(alike) - MOST_STACKS
    return [*lines, f"  {left} other stacks are not shown"] if left > 0 else lines


def numbered(collective: Collective) -> str:
    if not collective.sequence:
        return str(collective)
    return f"{collective} (operation {collective.sequence})"
