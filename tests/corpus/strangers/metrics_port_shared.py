"""Each rank serves its metrics, and the port has no rank in it.

nproc: 2
culprit: 0 1  # each wants the port that all have, and who comes first is chance
kind: port
hint: Address already in use|EADDRINUSE, port
seconds: 30
"""

import http.server
import os
import threading
import time

PORT = 20000 + os.getppid() % 9000


class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"loss 0.1\n")


class Server(http.server.HTTPServer):
    allow_reuse_address = False


def serve_metrics():
    server = Server(("127.0.0.1", PORT), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()


serve_metrics()
for _ in range(100):
    time.sleep(0.1)
