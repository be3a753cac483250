"""Authorities and certificates of a test's own, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_EXTENSIONS = """subjectAltName=IP:127.0.0.1
extendedKeyUsage=serverAuth,clientAuth
authorityKeyIdentifier=keyid
"""


def make_certificates(home: Path) -> None:
    """ca.pem, another-ca.pem, and what ca.pem has signed: server.pem, client.pem, with keys. The
    test is skipped where openssl is not there.
    """
    if not shutil.which("openssl"):
        pytest.skip("needs the openssl command to make certificates")
    (home / "san").write_text(_EXTENSIONS)
    for authority in ("ca", "another-ca"):
        signs = f"-out {authority}.pem -days 2 -subj /CN=test -addext keyUsage=critical,keyCertSign"
        openssl(home, f"req -x509 {_key(authority)} {signs}")
    for name in ("server", "client"):
        openssl(home, f"req {_key(name)} -out {name}.csr -subj /CN={name}")
        signed = f"-CA ca.pem -CAkey ca-key.pem -CAcreateserial -extfile san -out {name}.pem"
        openssl(home, f"x509 -req -in {name}.csr -days 2 {signed}")


def _key(name: str) -> str:
    return f"-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {name}-key.pem"


def openssl(home: Path, arguments: str) -> None:
    command = ["openssl", *arguments.split()]
    subprocess.run(command, cwd=home, check=True, capture_output=True, timeout=60)
