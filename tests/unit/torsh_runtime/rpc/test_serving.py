"""The threads that serve calls, and how they end."""

from __future__ import annotations

import threading
from typing import Any, cast

from torsh_runtime.rpc.serving import Servers


def test_a_thread_that_is_being_started_is_waited_for() -> None:
    servers = Servers(cast(Any, None), None)
    late = threading.Thread(target=lambda: None)
    servers._threads.add(late)
    threading.Timer(0.1, late.start).start()
    servers.join(30.0)
    assert late.ident is not None
    assert not late.is_alive()
