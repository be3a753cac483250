"""Rank 0 reports to a tracker that is not running.

nproc: 3
culprit: 0
kind: network
hint: Connection refused|ConnectionRefusedError|URLError
seconds: 40
"""

import json
import urllib.request

import numpy as np

import torsh_runtime as tr

TRACKER = "http://127.0.0.1:9/api/runs"


class Tracker:
    def __init__(self, url):
        self.url = url

    def log(self, **values):
        body = json.dumps(values).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=5).close()


tr.init_process_group()
tracker = Tracker(TRACKER)
loss = np.ones(1)
for step in range(20):
    tr.all_reduce(loss)
    loss /= tr.get_world_size()
    if step == 5 and tr.get_rank() == 0:
        tracker.log(step=step, loss=float(loss[0]))
tr.destroy_process_group()
