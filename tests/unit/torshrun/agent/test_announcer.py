"""What people read of it when others write hostile things, or too much goes wrong."""

from __future__ import annotations

import errno

import pytest

from torshrun.agent.announcer import COMPLAINTS, Announcer
from torshrun.config import gather, resolve
from torshrun.live.events import Recorder
from torshrun.rendezvous.base import JobOver, RoundClosing, Verdict

HOSTILE = "\x1b[2Jgone\r\ntorshrun: all is well"


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def tell(said: list[str]) -> Announcer:
    options = {"nnodes": "2", "rdzv_backend": "tcp", "rdzv_endpoint": "n0", "no_python": "true"}
    settings = gather(options, "true", (), {})
    job = resolve(settings, {}, new_id=lambda: "a name").job
    return Announcer(job, said.append, Recorder("job", None))


def test_nothing_that_others_wrote_gets_at_the_terminal(tell: Announcer, said: list[str]) -> None:
    tell.standing_by(HOSTILE)
    tell.decided(RoundClosing(round=0, reason=HOSTILE, failed=True))
    tell.decided(JobOver(Verdict(outcome="failed", code=1, reason=HOSTILE)))
    assert len(said) == 3
    assert all(line.isprintable() for line in said)


def test_descriptors_that_run_out_are_told_once(
    tell: Announcer, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("torshrun.agent.announcer.time.monotonic", lambda: now)
    for _ in range(100):
        tell.out_of_descriptors(OSError(errno.EMFILE, "Too many open files"))
    (line,) = said
    assert "Too many open files" in line
    now += COMPLAINTS
    tell.out_of_descriptors(OSError(errno.EMFILE, "Too many open files"))
    assert len(said) == 2
