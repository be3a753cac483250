"""Rank 0 asks for the list of shards, and a proxy answers with a page to log in.

nproc: 2
culprit: 0
kind: exception | network
hint: JSONDecodeError|json|ManifestError
needs: torch
seconds: 40
"""

import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
import torch.distributed as dist


class Proxy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        page = b"<!DOCTYPE html><title>Sign in</title><form action=/login></form>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)


class ManifestError(Exception):
    pass


def manifest(url: str) -> list[str]:
    answer = requests.get(url, timeout=10)
    answer.raise_for_status()
    try:
        return answer.json()["shards"]
    except requests.JSONDecodeError as error:
        raise ManifestError(f"{url} is no list of shards") from error


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    shards = [None]
    if dist.get_rank() == 0:
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        shards = [manifest(f"http://127.0.0.1:{proxy.server_port}/v2/shards.json")]
    dist.broadcast_object_list(shards)
    print(len(shards[0]), flush=True)


main()
