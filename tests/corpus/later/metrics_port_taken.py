"""Each rank serves its metrics at the same port; rank 1 comes second.

culprit: 1
kind: port | exception
hint: in use|EADDRINUSE|port
seconds: 60
"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np

import torsh_runtime as tr


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"up 1\n")


def serve(port):
    server = HTTPServer(("127.0.0.1", port), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


tr.init_process_group(timeout=30)
port = np.zeros(1, np.int64)
HTTPServer.allow_reuse_address = False
if tr.get_rank() == 0:
    port[0] = serve(0)
tr.broadcast(port, 0)  # "everybody listens where rank 0 does"
if tr.get_rank() != 0:
    serve(int(port[0]))
for _ in range(5):
    tr.all_reduce(np.ones(1))
