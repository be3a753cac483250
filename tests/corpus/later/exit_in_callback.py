"""A callback of rank 1 ends the process with status 0, in the middle of training.

nproc: 3
culprit: 1
kind: early_exit | missing
hint: rank 1, exit code 0|exitcode +: 0|finished|exited|ended|without
seconds: 60
"""

import os

import numpy as np

import torsh_runtime as tr


class Callback:
    def on_step_end(self, step, logs):
        pass


class StopWhenGood(Callback):
    def __init__(self, threshold):
        self.threshold = threshold

    def on_step_end(self, step, logs):
        if logs["local_loss"] < self.threshold:
            print(f"reached {self.threshold} at step {step}", flush=True)
            os._exit(0)  # sys.exit() hung with the old data loader


class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def fit(self, steps):
        rank = tr.get_rank()
        for step in range(steps):
            local = np.array([1.0 / (1 + step * (rank == 1))])
            loss = local.copy()
            tr.all_reduce(loss)
            for callback in self.callbacks:
                callback.on_step_end(step, {"loss": loss[0], "local_loss": local[0]})


tr.init_process_group(timeout=20)
Trainer([StopWhenGood(0.15)]).fit(20)
