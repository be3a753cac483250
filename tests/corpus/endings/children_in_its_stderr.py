"""A process that rank 1 starts fails, in its stderr; it goes on, and fails of something else.

culprit: 1
kind: nan
hint: finite
"""

import os
import subprocess
import sys
import time

subprocess.run([sys.executable, "-c", "import no_such_tool"], check=False)
if os.environ["RANK"] == "1":
    raise FloatingPointError("the loss is nan in step 3")
time.sleep(60)
