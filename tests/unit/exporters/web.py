"""A web configuration with its files, as an operator would make it."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import bcrypt
import pytest

TOKEN, PASSWORD = "0123456789abcdef-the-token", "correct horse"
#: The least that bcrypt takes: a test needs no protection.
HASH = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()


def certificate(directory: Path, name: str = "tls") -> Path:
    """``NAME.crt`` and ``NAME.key`` for localhost, which is its own authority; the certificate's path."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here: apt-get install openssl")
    made = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
    more = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
    subprocess.run([*made.split(), *more], cwd=directory, check=True, capture_output=True)
    return directory / f"{name}.crt"


def web_config(directory: Path, *, tls: str = "", users: str = f'ann = "{HASH}"', token: str = TOKEN) -> Path:
    """The file, and that of its token; nothing is asked for that is "" here."""
    (directory / "token").write_text(token + "\n")
    path = directory / "web.toml"
    lines = ['bearer_token_file = "token"'] if token else []
    lines += ["[tls_server_config]", tls] if tls else []
    lines += ["[basic_auth_users]", users] if users else []
    path.write_text("\n".join(lines))
    return path


def trusting(certificate: Path) -> ssl.SSLContext:
    """What a client needs to believe this certificate."""
    return ssl.create_default_context(cafile=certificate)
