"""Jobs whose metrics and events are sent to an OpenTelemetry collector."""

from __future__ import annotations

import socket

from support.collectors import CollectorServer, attributes_of
from support.launcher import Launcher

SCRIPT = """
import torsh_runtime as tr
assert "TORSH_OTLP" not in os.environ
for step in range(4):
    tr.monitoring.step(step, loss=0.5)
"""


def test_a_job_tells_what_it_was_at_its_end(torshrun: Launcher) -> None:
    path = torshrun.script(SCRIPT)
    with CollectorServer() as collector:
        torshrun.environ["OTEL_EXPORTER_OTLP_HEADERS"] = "x-key=a%20b"
        torshrun.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        assert torshrun.run("--nproc-per-node=2", path) == (0, "", "")
        assert collector.requests == []  # variables alone switch nothing on
        torshrun.environ["TORSH_OTLP"] = "env"
        assert torshrun.run("--nproc-per-node=2", "--run-id=digits", path) == (0, "", "")
        assert {headers["x-key"] for _, headers, _ in collector.requests} == {"a b"}
        found = collector.metrics()[-1]
        states = {
            attributes_of(point)["state"]: point["asDouble"]
            for point in found["torsh_job_state"]["gauge"]["dataPoints"]
        }
        assert (states["finished"], states["running"]) == (1.0, 0.0)
        steps = found["torsh_worker_steps_total"]["sum"]["dataPoints"]
        assert [each["asDouble"] for each in steps] == [4.0, 4.0]
        events = collector.events()
        assert events[-1][0] == "job_finished"
        assert events[0][1]["run_id"] == "digits"


def test_a_job_whose_collector_is_not_there(torshrun: Launcher) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = torshrun.run("--otlp", url, torshrun.script("print('done')"))
    assert (code, "done" in out) == (0, True)
    assert len(err.splitlines()) == 1
    assert f"no metrics reach {url} (" in err
    code, _, err = torshrun.run("--otlp", "collector:4318", torshrun.script(""))
    assert code == 2
    assert "--otlp: 'collector:4318' is not a URL like http://collector:4318" in err
