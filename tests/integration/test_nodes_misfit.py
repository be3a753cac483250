"""Nodes that cannot take part in a job, because of their options, do not disturb it."""

from __future__ import annotations

from support.launcher import Launcher
from support.nodes import QUICK, Job

from torshrun import exit_codes

AT_ONCE = QUICK.replace("last_call_timeout=0.5", "last_call_timeout=0")
OTHER = AT_ONCE.replace("ttl=3", "ttl=4")


def test_a_node_with_another_ttl_ends_before_it_breaks_a_round(torshrun: Launcher) -> None:
    """A supervisor starts it again and again."""
    script = torshrun.script(
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        print("up", os.environ["WORLD_SIZE"], flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        """
    )
    with Job.over_tcp(torshrun, "1:3", conf=AT_ONCE) as job:
        first = job.start(script)
        first.wait_for("up 1")
        for _ in range(2):
            code, output = job.start(f"--rdzv-conf={OTHER}", script).end()
            assert code == exit_codes.RENDEZVOUS
            assert "ttl is 4 here and 3 on the other nodes: give all the same --rdzv-conf" in output
        assert "round 0 ends" not in first.output
        second = job.start(script)
        first.wait_for("up 2")
        second.wait_for("up 2")
        torshrun.make("go")
        assert [node.end()[0] for node in (first, second)] == [0, 0]
