"""Only rank 0 imports the experiment tracker, which is not installed.

nproc: 3
culprit: 0
kind: import | exception
hint: ModuleNotFoundError|not installed|No module|import
seconds: 60
"""

import os

import numpy as np

import torsh_runtime as tr


class Tracker:
    def __init__(self, enabled):
        self.run = None
        if enabled:
            import neptuna_client

            self.run = neptuna_client.init(project="team/exp")

    def log(self, **metrics):
        if self.run is not None:
            self.run.log(metrics)


def main():
    tr.init_process_group(timeout=30)
    tracker = Tracker(enabled=os.environ["RANK"] == "0")
    for step in range(10):
        loss = np.random.default_rng(step).random(1)
        tr.all_reduce(loss)
        tracker.log(step=step, loss=loss[0])


if __name__ == "__main__":
    main()
