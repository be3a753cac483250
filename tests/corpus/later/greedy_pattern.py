"""A regular expression of rank 0's data filter backtracks without end on one document.

nproc: 3
culprit: 0
kind: stuck | slow | missing
hint: rank 0, is_mail|filter|re\\.|match|all_reduce
seconds: 60
"""

import re

import numpy as np

import torsh_runtime as tr

MAIL = re.compile(r"^([a-zA-Z0-9]+\.?)+@example\.org$")


def is_mail(text):
    return MAIL.match(text) is not None


def keep(documents):
    return [d for d in documents if not is_mail(d)]


def main():
    tr.init_process_group(timeout=30)
    documents = ["hello", "a.b@example.org", "short"] * 100
    if tr.get_rank() == 0:
        documents[77] = "a" * 60 + "!"
    for start in range(0, 300, 50):
        kept = np.array([len(keep(documents[start : start + 50]))])
        tr.all_reduce(kept)


if __name__ == "__main__":
    main()
