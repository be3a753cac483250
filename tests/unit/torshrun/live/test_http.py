"""The HTTP endpoint, asked as clients ask, good ones and bad ones."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from support.processes import soon

from torsh_runtime.enumerations import OPERATIONS
from torsh_runtime.errors import ConfigError
from torsh_runtime.monitoring import layout
from torshrun.health.gpu_health import GpuReading
from torshrun.health.recordings import Recordings
from torshrun.live import http_server
from torshrun.live.http_pages import STALL_SECONDS, Pages, unhealthy
from torshrun.live.http_server import HttpServer
from torshrun.live.prometheus import Exposition
from torshrun.live.snapshot import Counted, Noted, Snapshot

DOC = Path(__file__).parents[4] / "docs/metrics.md"


A_GPU = GpuReading(
    pci="0000:3b:00.0",
    index=0,
    memory_used=1 << 30,
    utilization=87,
    power=412_500,
    temperature=61,
    ecc=0,
    reasons=4,
    xids=(31,),
    xid_count=1,
)


def a_snapshot(**facts: Any) -> Snapshot:
    now = time.monotonic()
    values: dict[str, Any] = {
        "run_id": "j",
        "role": "default",
        "started": now - 60,
        "heartbeat": now,
        "state": "running",
        "pids": (os.getpid(), 0),
    }
    return Snapshot(**values | facts)


class Endpoint:
    """A server whose snapshot the test may change."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.failure: Exception | None = None
        self.server = HttpServer("127.0.0.1", 0, Pages(self.snapshot).respond)
        self.server.start()
        host, port = self.server.url.removeprefix("http://").split(":")
        self.address = (host, int(port))

    def snapshot(self) -> Snapshot:
        if self.failure:
            raise self.failure
        return a_snapshot(**self.facts)

    def num_visits(self) -> int:
        return self.server._visits.num_callers

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[http.client.HTTPResponse, str]:
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            response = connection.getresponse()
            return response, response.read().decode()

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        return parsed(self.ask("/metrics")[1])


def parsed(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by name and by the values of the labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.server.close()


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """Another process."""
    program = "import time; print('up', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()  # before it is Python it has no memory to speak of
        yield process
        process.kill()


# ---- what is measured


def test_the_job_in_numbers(endpoint: Endpoint) -> None:
    endpoint.facts = {
        "run_id": 'a "job"\n',
        "node_rank": 1,
        "num_nodes": 2,
        "round": 4,
        "restarts": 3,
        "max_restarts": 5,
        "failures": {"out of memory": 1, "exit code": 2},
        "output_bytes": 12345,
        "started": time.monotonic() - 60,
    }
    told = endpoint.samples()
    assert told["torsh_job_info"] == {("1", "default", 'a "job"\n'): 1}
    assert told["torsh_nodes"] == {(): 2}
    assert told["torsh_round"] == {(): 4}
    assert told["torsh_workers"] == {(): 2}
    assert told["torsh_workers_alive"] == {(): 1}
    assert told["torsh_restarts_total"] == {(): 3}
    assert told["torsh_restarts_allowed"] == {(): 5}
    assert told["torsh_output_bytes_total"] == {(): 12345}
    assert told["torsh_worker_failures_total"] == {("out of memory",): 1, ("exit code",): 2}
    states = ("starting", "running", "stopping", "restarting", "finished")
    assert told["torsh_job_state"] == {(state,): state == "running" for state in states}
    started = told["torsh_job_start_time_seconds"]
    assert started == {(): pytest.approx(time.time() - 60, abs=30)}
    assert endpoint.samples()["torsh_job_start_time_seconds"] == started
    assert told["torsh_heartbeat_age_seconds"][()] >= 0
    assert told["process_resident_memory_bytes"][()] > 0


def test_workers_in_numbers(endpoint: Endpoint, worker: subprocess.Popen[bytes]) -> None:
    endpoint.facts = {"pids": (worker.pid, 0, os.getpid()), "steps": (7, None), "first_rank": 4}
    told = endpoint.samples()
    assert told["torsh_worker_up"] == {("4",): 1, ("5",): 0, ("6",): 1}
    assert told["torsh_worker_step"] == {("4",): 7}
    assert told["torsh_worker_resident_memory_bytes"].keys() == {("4",), ("6",)}
    assert all(size > 100_000 for size in told["torsh_worker_resident_memory_bytes"].values())
    assert told["torsh_worker_cpu_seconds_total"].keys() == {("4",), ("6",)}
    assert told["torsh_worker_cpu_seconds_total"]["6",] > 0


def recorded(folder: Path) -> str:
    """The status file beside which two workers' operations are: four broadcasts of the second."""
    status = str(folder / "status")
    Recordings.make(status, 2).close()
    words = array("Q", bytes(layout.RECORDING_BYTES))
    words[2:6] = array("Q", [0, 0, 2_000, 1_000])  # two ticks a nanosecond
    kind = OPERATIONS.index("broadcast")
    cell = layout.FIRST_TALLY + kind * layout.SIZES * 4
    words[cell : cell + 4] = array("Q", [3, 0, 8_000_000_000, 2_000_000_000])
    words[cell + 4 : cell + 8] = array("Q", [1, 1, 0, 0])
    durations = (
        layout.FIRST_TALLY + len(layout.RECORDED) * layout.SIZES * 4 + kind * layout.DURATIONS
    )
    words[durations + 11] = 3  # less than 2,048 ticks: 1.024 µs
    words[durations + 31] = 1  # less than 1.074 s, and counted up to 1.049 s
    with Path(layout.file_beside(status)).open("r+b") as file:
        file.seek(layout.HEADER_BYTES + layout.STRIDE)
        file.write(words.tobytes())
    return status


def test_what_workers_have_recorded(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.facts = {"status_file": recorded(tmp_path), "first_rank": 4}
    told = endpoint.samples()
    of = ("broadcast", "5")
    assert told["torsh_worker_operations_total"] == {of: 4}
    assert told["torsh_worker_operation_bytes_total"] == {of: 1}
    assert told["torsh_worker_operation_seconds_total"] == {of: 4.0}
    assert told["torsh_worker_operation_wait_seconds_total"] == {of: 1.0}
    buckets = told["torsh_operation_duration_seconds_bucket"]
    assert [calls for (_, operation), calls in buckets.items() if operation == "broadcast"] == [
        *[3] * 10,
        *[4] * 5,
    ]
    assert buckets["1e-06", "broadcast"] == 3
    assert told["torsh_operation_duration_seconds_sum"] == {("broadcast",): 4.0}
    assert told["torsh_operation_duration_seconds_count"] == {("broadcast",): 4}


def test_what_workers_have_noted(endpoint: Endpoint) -> None:
    one = Counted(7, 64.0, {"loss": 0.5, "l\x1b[2J": float("nan")}, {"data": 1.5}, 2)
    endpoint.facts = {"noted": Noted([one, Counted()], {"scalar": 3, "section": 0})}
    told = endpoint.samples()
    assert told["torsh_worker_steps_total"] == {("0",): 7, ("1",): 0}
    assert told["torsh_worker_samples_total"] == {("0",): 64, ("1",): 0}
    assert told["torsh_worker_scalar"]["loss", "0"] == 0.5
    assert told["torsh_worker_scalar"].keys() == {("loss", "0"), ("l", "0")}
    assert told["torsh_worker_section_seconds_total"] == {("0", "data"): 1.5}
    assert told["torsh_worker_notes_lost_total"] == {("0",): 2, ("1",): 0}
    assert told["torsh_names_dropped"] == {("scalar",): 3, ("section",): 0}


def test_a_worker_that_has_just_gone_has_no_usage(
    endpoint: Endpoint, worker: subprocess.Popen[bytes]
) -> None:
    worker.kill()
    worker.wait()
    endpoint.facts = {"pids": (worker.pid,)}
    told = endpoint.samples()
    assert told["torsh_worker_up"] == {("0",): 1}
    assert "torsh_worker_resident_memory_bytes" not in told


def test_a_name_that_is_no_unicode_is_spelt_out(endpoint: Endpoint) -> None:
    endpoint.facts = {"run_id": "j\udcff"}
    assert ("0", "default", "j\\udcff") in endpoint.samples()["torsh_job_info"]


def test_openmetrics_is_spoken_to_who_asks_for_it() -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    body, content_type = Exposition(a_snapshot).render(accept)
    assert content_type.startswith("application/openmetrics-text")
    assert "torsh_restarts" in {family.name for family in open_metrics(body.decode())}


def test_two_servers_do_not_share_their_numbers(endpoint: Endpoint) -> None:
    other = Endpoint()
    try:
        other.facts = {"restarts": 9}
        assert other.samples()["torsh_restarts_total"] == {(): 9}
        assert endpoint.samples()["torsh_restarts_total"] == {(): 0}
    finally:
        other.server.close()


def test_names_follow_the_conventions_and_the_document_has_them(tmp_path: Path) -> None:
    rows = []
    snapshot = a_snapshot(
        pids=(os.getpid(),),
        steps=(1,),
        failures={"exit code": 1},
        status_file=recorded(tmp_path),
        noted=Noted([Counted(scalars={"loss": 1.0}, sections={"data": 1.0})], {"scalar": 1}),
    )
    for metric in Exposition(lambda: snapshot, lambda: [A_GPU]).collect():
        sample = metric.samples[0]
        assert sample.name.startswith("torsh_")
        assert sample.name.endswith("_total") == (metric.type == "counter"), sample.name
        labels = ", ".join(f"`{label}`" for label in sample.labels)
        row = f"| `{sample.name}` | {metric.type} | {labels} | {metric.documentation} |\n"
        rows.append(row)
    written = "".join(rows)
    _, marker, rest = DOC.read_text().partition("| metric | type | labels | |\n|---|---|---|---|\n")
    assert marker, "docs/metrics.md lacks its table"
    assert rest.startswith(written + "\n"), "the table in docs/metrics.md must be:\n" + written


def test_a_gpu_has_the_rank_whose_local_rank_is_its_number() -> None:
    gpus = [A_GPU, replace(A_GPU, index=1, power=None), replace(A_GPU, index=2, reasons=0x40)]
    text = Exposition(lambda: a_snapshot(first_rank=4), lambda: gpus).render("")[0].decode()
    shown = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in text.splitlines()}
    assert shown['torsh_gpu_memory_used_bytes{gpu="0",rank="4"}'] == "1.073741824e+09"
    assert shown['torsh_gpu_utilization{gpu="1",rank="5"}'] == "0.87"
    assert shown['torsh_gpu_power_watts{gpu="0",rank="4"}'] == "412.5"
    assert shown['torsh_gpu_xid_total{gpu="0",rank="4"}'] == "1.0"
    assert shown['torsh_gpu_throttled{gpu="2",rank=""}'] == "1.0"
    assert 'torsh_gpu_power_watts{gpu="1",rank="5"}' not in shown  # unknown


def test_without_gpus_nothing_is_said_of_them() -> None:
    assert b"torsh_gpu" not in Exposition(a_snapshot).render("")[0]


# ---- health


@pytest.mark.parametrize("state", ["starting", "running", "restarting"])
def test_an_agent_at_work_is_healthy(endpoint: Endpoint, state: str) -> None:
    endpoint.facts = {"state": state, "round": 2, "steps": (5, 6)}
    response, body = endpoint.ask("/healthz")
    assert response.status == 200
    assert response.getheader("Content-Type") == "application/json"
    assert json.loads(body) == {
        "status": state,
        "run_id": "j",
        "node_rank": 0,
        "round": 2,
        "workers": 2,
        "alive": 1,
        "restarts": 0,
        "step": 5,
    }


@pytest.mark.parametrize("state", ["stopping", "finished"])
def test_a_job_that_ends_takes_no_more_part(endpoint: Endpoint, state: str) -> None:
    endpoint.facts = {"state": state}
    response, body = endpoint.ask("/healthz")
    assert response.status == 503
    told = json.loads(body)
    assert (told["status"], told["reason"]) == (state, f"the job is {state}")


def test_an_agent_whose_loop_stands_still_is_not_healthy(endpoint: Endpoint) -> None:
    endpoint.facts = {"heartbeat": time.monotonic() - 100}
    response, body = endpoint.ask("/healthz")
    assert response.status == 503
    assert "has not beaten for 1" in json.loads(body)["reason"]
    assert endpoint.samples()["torsh_heartbeat_age_seconds"][()] >= 100


def test_the_limit_of_patience() -> None:
    snapshot = a_snapshot(heartbeat=100.0)
    assert unhealthy(snapshot, 100.0 + STALL_SECONDS) == ""
    assert unhealthy(snapshot, 100.1 + STALL_SECONDS)


# ---- requests


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/nothing"])
def test_head_is_get_without_the_body(endpoint: Endpoint, path: str) -> None:
    got, _ = endpoint.ask(path)
    head, body = endpoint.ask(path, "HEAD")
    assert body == ""
    assert head.status == got.status
    assert head.getheader("Content-Type") == got.getheader("Content-Type")
    assert int(head.getheader("Content-Length") or 0) > 0


def test_other_paths_and_methods(endpoint: Endpoint) -> None:
    response, body = endpoint.ask("/metricsx")
    assert (response.status, body) == (404, "there is only /metrics and /healthz\n")
    assert endpoint.ask("/healthz?probe=1")[0].status == 200
    assert endpoint.ask("/metrics", "POST")[0].status == 501


def test_a_snapshot_that_fails_harms_only_the_answer(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    endpoint.failure = RuntimeError("no \udcff")
    for path in ("/metrics", "/healthz"):
        response, body = endpoint.ask(path)
        assert (response.status, body) == (500, "cannot answer: RuntimeError: no \\udcff\n")
    endpoint.failure = None
    assert endpoint.ask("/healthz")[0].status == 200
    assert capfd.readouterr() == ("", "")


# ---- bad clients


def cut_off(connection: socket.socket) -> bool:
    """Whether the server has ended the connection, after what it had to say."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 1000 + b"\n",
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
    ],
)
def test_nonsense_is_no_trouble(
    endpoint: Endpoint, data: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with endpoint.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        assert cut_off(connection)
    assert endpoint.ask("/healthz")[0].status == 200
    assert capfd.readouterr() == ("", "")


def test_clients_that_go_away_are_no_trouble(
    endpoint: Endpoint, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(20):
        with endpoint.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert soon(lambda: not endpoint.num_visits())
    assert endpoint.ask("/healthz")[0].status == 200
    assert capfd.readouterr() == ("", "")


def test_a_client_that_trickles_is_cut_off(endpoint: Endpoint) -> None:
    endpoint.server._visits.patience = 0.3
    with endpoint.connect() as connection:
        connection.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            connection.recv(1)

        def ended() -> bool:
            try:
                connection.sendall(b"x")
                return connection.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        assert soon(ended)
    assert endpoint.ask("/healthz")[0].status == 200


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HT", b"GET /metrics HTTP/1.1\r\nA: b\r\n"])
def test_clients_that_never_end_their_request_keep_nobody_out(
    endpoint: Endpoint, begun: bytes
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            idle = stack.enter_context(endpoint.connect())
            idle.sendall(begun)
        for path in ("/healthz", "/metrics"):
            assert endpoint.ask(path)[0].status == 200
        assert endpoint.num_visits() <= http_server.MOST_VISITS


def test_a_client_that_does_not_read_keeps_nobody_out(endpoint: Endpoint) -> None:
    endpoint.facts = {"run_id": "x" * 8_000_000}
    with endpoint.connect() as idle:
        idle.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert idle.recv(1)
        endpoint.facts = {}
        assert endpoint.ask("/healthz")[0].status == 200


def test_a_flood_goes_on_while_others_are_answered(endpoint: Endpoint) -> None:
    over = threading.Event()

    def flood() -> None:
        opened: deque[socket.socket] = deque()
        while not over.is_set():
            opened.append(endpoint.connect())
            if len(opened) > 200:
                opened.popleft().close()
        for connection in opened:
            connection.close()

    flooder = threading.Thread(target=flood)
    flooder.start()
    try:
        assert soon(lambda: endpoint.num_visits() == http_server.MOST_VISITS)
        assert [endpoint.ask("/healthz")[0].status for _ in range(20)] == [200] * 20
    finally:
        over.set()
        flooder.join()


def test_without_descriptors_the_oldest_connection_goes(endpoint: Endpoint) -> None:
    """And one that comes then is answered."""
    endpoint.server._visits.patience = 1000.0
    endpoint.ask("/nothing")  # loads what an answer needs
    assert soon(lambda: not endpoint.num_visits())
    with endpoint.connect() as idle, contextlib.ExitStack() as stack:
        assert soon(lambda: endpoint.num_visits() == 1)
        client = stack.enter_context(socket.socket())
        stack.enter_context(all_descriptors_used())
        client.settimeout(20)
        client.connect(endpoint.address)
        client.sendall(b"GET /nothing HTTP/1.0\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.0 404 ")
        assert cut_off(idle)


@contextlib.contextmanager
def all_descriptors_used() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    fillers: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            fillers.append(os.dup(0))
    try:
        yield
    finally:
        for filler in fillers:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_follows_a_request_is_no_trouble(endpoint: Endpoint) -> None:
    with endpoint.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n" + b"\0nonsense\r\n\r\n" * 10_000)
        received = b""
        while data := connection.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.0 200 OK\r\n")
    assert received.count(b"HTTP/1.0") == 1


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 5000, b"431 "),
        (b"GET /" + b"x" * 20_000, b"431 "),
        (b"nonsense\r\n\r\n", b"400 "),
        (b"GET /healthz HTTP/2\r\n\r\n", b"400 "),
        (b"\r\n\r\n", b"400 "),
        (b"GET /healthz HTTP/1.0\n\n", b"200 "),
    ],
)
def test_what_is_no_request_is_told_so(endpoint: Endpoint, request_: bytes, status: bytes) -> None:
    with endpoint.connect() as connection:
        connection.sendall(request_)
        assert connection.recv(65536).startswith(b"HTTP/1.0 " + status)


def test_closing_ends_open_connections(endpoint: Endpoint) -> None:
    with endpoint.connect() as idle, endpoint.connect() as half:
        half.sendall(b"GET /metr")
        assert soon(lambda: endpoint.num_visits() == 2)
        endpoint.server.close()
        assert cut_off(idle)
        assert cut_off(half)
    with pytest.raises(ConnectionRefusedError):
        endpoint.connect()


def test_a_server_that_never_began_can_be_closed() -> None:
    HttpServer("127.0.0.1", 0, bytes).close()


def test_an_ipv6_address_may_stand_in_brackets() -> None:
    try:
        server = HttpServer("[::1]", 0, bytes)
    except ConfigError:
        pytest.skip("needs IPv6 on the loopback interface")
    assert server.url.startswith("http://[::1]:")
    server.close()


def test_its_threads_do_not_keep_a_process_from_ending() -> None:
    code = (
        "import socket; from torshrun.live.http_server import HttpServer\n"
        "server = HttpServer('127.0.0.1', 0, bytes); server.start()\n"
        "host, port = server.url.removeprefix('http://').split(':')\n"
        "client = socket.create_connection((host, int(port))); print('ready')"
    )
    ended = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ready\n", "")
