"""A server lets three ranks have the tokenizer and refuses the fourth, whose retries all fail.

nproc: 4
culprit: 3
kind: network | exception
hint: HTTPError|429|too many requests
needs: torch
seconds: 60
"""

import logging
import threading
import time
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests
import torch
import torch.distributed as dist

logging.basicConfig(level=logging.INFO, format="%(asctime)s [%(levelname)s] %(message)s")


class Hub(BaseHTTPRequestHandler):
    left = 3

    def do_GET(self) -> None:
        Hub.left -= 1
        self.send_response(200 if Hub.left >= 0 else 429)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


def download(url: str) -> bytes:
    for attempt in range(4):
        answer = requests.get(url, timeout=10)
        if answer.status_code != 429 or attempt == 3:
            break
        logging.warning("%s: 429, trying again in %.1f s", url, 0.2 * 2**attempt)
        time.sleep(0.2 * 2**attempt)
    answer.raise_for_status()
    return answer.content


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank = dist.get_rank()
    port = [None]
    if rank == 0:
        hub = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        port = [hub.server_port]
    dist.broadcast_object_list(port)
    for turn in range(4):
        if turn == rank:
            download(f"http://127.0.0.1:{port[0]}/bert/resolve/main/tokenizer.json")
            logging.info("rank %d has its tokenizer", rank)
        dist.all_reduce(torch.zeros(1))


main()
