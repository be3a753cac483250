"""Which process listens on a port of this host."""

from __future__ import annotations


def listener(port: int) -> str:
    """Its name and process id, or what is known of it, for a sentence."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN
            if listening and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return "another process"
    return "a process of another user or a connection"
