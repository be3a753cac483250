"""Run by each Python of a worker before its script: torsh_start.py, unless it is a Python 2, which
goes on as if there were no such file. It must parse in any Python.
"""

import sys

if sys.version_info[0] > 2:  # noqa: UP036
    import torsh_start

    torsh_start.begin()
else:
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    sys.modules.pop("sitecustomize", None)
    __import__("sitecustomize")
