"""Finds the server that is informed of the job's progress: Kubeflow Trainer's.

The variables of a TrainJob's pods name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torsh_runtime.errors import ConfigError
from torshrun.config.job import ProgressServer
from torshrun.config.values import url

_URL, _CA, _TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
_OFF = "DISABLE_KUBEFLOW_INTEGRATION"
"""Switches off what transformers reports to the same server, too."""
_WORKER = "TORSH_STORE_ENDPOINT"


def progress_server(environ: Mapping[str, str]) -> ProgressServer | None:
    """Return the server; None if there is none, or the variables are invalid.

    Return None in a worker of another torshrun's as well: that one reports the progress.
    """
    try:
        return _server(environ)
    except ConfigError:
        return None


def progress_notes(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for people if no server is informed although one should be."""
    try:
        _server(environ)
    except ConfigError as error:
        yield f"Kubeflow Trainer is not told how far the job is: {error}"


def _server(environ: Mapping[str, str]) -> ProgressServer | None:
    """Return the server, or None. Raise ConfigError if the variables are invalid."""
    place = environ.get(_URL)
    if not place or environ.get(_OFF, "").upper() == "TRUE" or _WORKER in environ:
        return None
    try:
        place = url(place)
    except ConfigError:
        raise ConfigError(f"{_URL}={place[:200]!r} is not a URL") from None
    if not place.startswith("https://"):
        raise ConfigError(f"{_URL} is not https://, and a token would be sent in the clear")
    if not environ.get(_TOKEN):
        raise ConfigError(f"{_TOKEN} does not say where the token for {_URL} is")
    return ProgressServer(url=place, ca_file=environ.get(_CA, ""), token_file=environ[_TOKEN])
