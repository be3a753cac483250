"""All ranks open the debugger's port, which is one number for the whole host.

nproc: 2
culprit: 0 1
kind: port
hint: port|address, in use|taken|listen|bind
seconds: 20
"""

import os
import socket
import time

DEBUG_PORT = 20000 + os.getppid() % 10000  # 5678, say; here no two jobs have the same


def listen_for_debugger():
    server = socket.create_server(("127.0.0.1", DEBUG_PORT))
    print(f"a debugger can attach at port {DEBUG_PORT}", flush=True)
    return server


def main():
    with listen_for_debugger():
        for _ in range(150):
            time.sleep(0.1)  # trains


main()
