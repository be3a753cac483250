"""Explains why a host could not be started or was lost, and what to do about it. Pure."""

from __future__ import annotations

from torshrun.text import printable

_SHOWN = 3  # last lines of ssh, or of the shell on the host
_SSH_FAILED = 255
_ADVICE = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its key is not the one that known_hosts has: find out why before you remove that line "
        "(ssh-keygen -R HOST)",
    ),
    (
        "Host key verification failed",
        "its key is not known here: connect once by hand (ssh HOST) and compare the fingerprint, "
        "or have an administrator fill known_hosts",
    ),
    (
        "Permission denied",
        "no key of yours is accepted there, and torshrun asks nobody for passwords: ssh-copy-id "
        "HOST puts a key there, ssh-add unlocks one that has a passphrase",
    ),
    (
        "Could not resolve hostname",
        "the name is not known here: see whether the hostfile spells it right, or give it a "
        "HostName in ~/.ssh/config",
    ),
    ("Connection refused", "no sshd listens there: see the host and the port (port=N)"),
    ("timed out", "nothing answers there: see whether the host is up, and for firewalls"),
    ("No route to host", "nothing answers there: see whether the host is up, and for firewalls"),
    ("Network is unreachable", "there is no route from this host to that one"),
    (
        "No module named",
        "torshrun is not installed for that Python: install the same version there, or name "
        "another Python by --remote-python",
    ),
    ("Bad configuration option", "ssh rejects an option: see ~/.ssh/config, --ssh-command"),
)
_BY_CODE = {
    126: "that Python cannot be executed there: name another by --remote-python",
    127: "that Python does not exist there: name another by --remote-python",
}


def explain(code: int | None, said: str) -> str:
    """Describe what happened.

    `code` is ssh's exit status (None while it runs), and `said` its stderr.
    """
    lines = [printable(line.strip()) for line in said.splitlines() if line.strip()]
    what = " / ".join(lines[-_SHOWN:]) or "it said nothing"
    how = "" if code is None else f" ({_ended(code)})"
    advice = _advice(code, said)
    return f"{what}{how}{': ' if advice else ''}{advice}"


def _ended(code: int) -> str:
    if code < 0:
        return f"ssh was ended by signal {-code}"
    return f"exit code {code}, ssh's own" if code == _SSH_FAILED else f"exit code {code}"


def _advice(code: int | None, said: str) -> str:
    fitting = (advice for words, advice in _ADVICE if words in said)
    return next(fitting, _BY_CODE.get(code or 0, ""))
