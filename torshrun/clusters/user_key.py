"""Keeps a key in this user's home directory, where all nodes find it and nobody else can read it.

Jobs on clusters derive their secrets from it if none is given.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import pwd
from pathlib import PurePath

from torshrun.clusters.hints import Environ
from torshrun.safe_files import Folder, safe_open

_NAME = "key"
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def make_user_key(environ: Environ) -> str:
    """Return the path of the key, ~/.config/torshrun/key. Create it if it does not exist.

    Raises OSError.
    """
    path = user_key_path(environ)
    folder = str(PurePath(path).parent)
    with contextlib.suppress(FileExistsError):
        Folder.make(folder).close()
    directory = safe_open(folder, _DIRECTORY)
    try:
        with contextlib.suppress(FileExistsError):
            _make_in(directory)
    finally:
        os.close(directory)
    return path


def user_key_path(environ: Environ) -> str:
    """Return the path of the key, whether it exists or not.

    A relative XDG_CONFIG_HOME is ignored, as its specification says. Raises OSError if there is no
    home directory, or HOME is relative.
    """
    place = PurePath(environ.get("XDG_CONFIG_HOME", ""))
    if not place.is_absolute():
        place = PurePath(_home(environ), ".config")
    return str(place / "torshrun" / _NAME)


def _home(environ: Environ) -> str:
    if home := environ.get("HOME"):
        if not PurePath(home).is_absolute():
            why = "it is not an absolute path, so each directory would have a key of its own"
            raise OSError(errno.EINVAL, why, f"HOME={home}")
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        raise FileNotFoundError(errno.ENOENT, "this user has no home directory") from None


def _make_in(directory: int) -> None:
    """Create the key once, completely or not at all, whichever of a job's nodes comes first.

    A link is created atomically, on network file systems, too, and fails if the name exists.
    """
    if _is_there(directory):
        raise FileExistsError
    temporary = f".{_NAME}-{os.urandom(8).hex()}"
    descriptor = os.open(temporary, _WRITE, 0o600, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(os.urandom(32).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, _NAME, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.unlink(temporary, dir_fd=directory)


def _is_there(directory: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.stat(_NAME, dir_fd=directory, follow_symlinks=False)
        return True
    return False


def job_secret(key: str, run_id: str) -> str:
    """Return the secret of one job. The key cannot be derived from it."""
    return hmac.new(key.encode(), b"torshrun job " + run_id.encode(), hashlib.sha256).hexdigest()
