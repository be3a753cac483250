"""No rank has the package that logs to the experiment tracker.

nproc: 2
culprit: none
kind: import
hint: import, experiment_tracker_x
seconds: 30
"""

import argparse
import importlib

import numpy as np

import torsh_runtime as tr

TRACKERS = {"csv": "csv", "tracker": "experiment_tracker_x"}


def get_tracker(name):
    return importlib.import_module(TRACKERS[name])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tracker", default="tracker", choices=sorted(TRACKERS))
    args = parser.parse_args()
    tracker = get_tracker(args.tracker)
    tr.init_process_group()
    loss = np.zeros(1)
    tr.all_reduce(loss)
    print(tracker, loss)
    tr.destroy_process_group()


main()
