"""Kubeflow Trainer's server of a test's own, to which pods of a TrainJob tell how far they are."""

from __future__ import annotations

import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = dict[str, Any]
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/digits/status"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.e30.c2lnbmF0dXJl"
_MOST_BYTES = 1 << 16
_FIELDS = {"progressPercentage", "estimatedRemainingSeconds", "metrics", "lastUpdatedTime"}


class TrainerServer:
    """Serves HTTPS on a free port of this host, with the certificate of make_certificates(), and
    takes what the TrainJob's schema takes. Ends by with.
    """

    def __init__(self, certificates: Path) -> None:
        self.statuses: list[Json] = []
        """What it has taken."""
        self.refused: list[int] = []
        """How it has answered everything else."""
        self.is_well = True
        """Whether it takes anything."""
        self.token_file = certificates / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.environ = {
            "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(certificates / "ca.pem"),
            "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token_file),
        }
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = server._answer(self.path, self.headers["Authorization"], body)
                if code != 200:
                    server.refused.append(code)
                self.send_response(code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = False

            def finish_request(self, request: Any, address: Any) -> None:
                try:
                    request.settimeout(20)
                    request.do_handshake()
                except OSError:  # who does not believe the certificate
                    return
                super().finish_request(request, address)

        self._server = Server(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.pem", certificates / "server-key.pem")
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}{PATH}"
        self.environ["KUBEFLOW_TRAINER_SERVER_URL"] = self.url
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> TrainerServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, path: str, authorization: str | None, body: bytes) -> int:
        if not self.is_well:
            return 500
        if authorization != f"Bearer {self.token_file.read_text().strip()}":
            return 403
        if path != PATH:
            return 404
        if len(body) > _MOST_BYTES:
            return 413
        status = json.loads(body).get("trainerStatus")
        if mistake(status):
            return 422
        self.statuses.append(status)
        return 200


def mistake(status: Json) -> str:
    """What the schema of a TrainJob's trainerStatus has against it; "" if nothing."""
    if set(status) - _FIELDS:
        return "unknown fields"
    if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", status.get("lastUpdatedTime", "")):
        return "no time"
    for name, most in (("progressPercentage", 100), ("estimatedRemainingSeconds", 2**31 - 1)):
        value = status.get(name, 0)
        if type(value) is not int or not 0 <= value <= most:
            return name
    metrics = status.get("metrics", [])
    texts = [text for each in metrics for text in (each["name"], each["value"])]
    if len(metrics) > 256 or any(set(each) != {"name", "value"} for each in metrics):
        return "metrics"
    is_fit = all(isinstance(text, str) and 1 <= len(text) <= 64 for text in texts)
    return "" if is_fit else "a metric"


def metrics_of(status: Json) -> dict[str, str]:
    return {each["name"]: each["value"] for each in status.get("metrics", [])}
