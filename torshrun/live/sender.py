"""Sends to a server at intervals, in a thread of its own, and never holds up the job."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from torshrun.text import printable

FIRST_SECONDS = 1.0
"""Seconds after the job's begin, and between attempts while there is nothing to send."""
INTERVAL_SECONDS = 10.0
ANSWER_SECONDS = 5.0
"""Seconds for which an answer is awaited."""
CLOSE_SECONDS = 2.0
"""Seconds for which close() waits until the last is sent, while the server takes anything."""

_WHY_CHARS = 200


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the request would become a GET, and show its credentials to others."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Sender:
    """Sends at intervals, and once more at the end.

    A server that takes nothing costs the job nothing but one warning. What is sent, and how often
    at most, is up to subclasses.
    """

    def __init__(self, name: str, what: str, url: str, complain: Callable[[str], None]) -> None:
        """Prepare to send.

        Args:
            name: The thread's name.
            what: What is sent, for warnings.
            url: The server's address, for warnings.
            complain: A function that takes a line, from any thread.
        """
        self._what = what
        self._url = url
        self._complain = complain
        self._has_complained = self._has_failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send the last, within bounded time."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS / 4 if self._has_failed else CLOSE_SECONDS)

    def _send(self) -> bool:
        """Send what there is to send now, and return whether there has ever been anything.

        Raises OSError and others if the server does not take it.
        """
        raise NotImplementedError

    def _run(self) -> None:
        self._closing.wait(FIRST_SECONDS)
        while not self._closing.is_set():
            has_begun = self._try_to_send()
            self._closing.wait(INTERVAL_SECONDS if has_begun else FIRST_SECONDS)
        self._try_to_send()

    def _try_to_send(self) -> bool:
        try:
            has_begun = self._send()
            self._has_failed = False
            return has_begun
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._has_failed = True
            why = str(getattr(error, "reason", "") or error or type(error).__name__)
            self._complain_once(printable(why).strip()[:_WHY_CHARS])  # of whoever answers there
            return True

    def _post(
        self,
        url: str,
        body: object,
        headers: Mapping[str, str],
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Post `body` as JSON. Raises OSError and others if the server does not take it.

        `context` says which certificates are trusted; None means the system's.
        """
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        )
        https = [urllib.request.HTTPSHandler(context=context)] if context else []
        seconds = CLOSE_SECONDS if self._closing.is_set() else ANSWER_SECONDS
        try:
            opener = urllib.request.build_opener(_NoRedirect, *https)
            opener.open(request, timeout=seconds).close()
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def _complain_once(self, why: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            self._complain(
                f"warning: no {self._what} reach {self._url} ({why}); it is tried again every "
                f"{INTERVAL_SECONDS:.0f} s"
            )
