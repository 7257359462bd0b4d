"""Who may ask, and over what: the file of ``http.web_config``, and what stands in the files that it names.

The keys are those of Prometheus' exporters (prometheus/exporter-toolkit, docs/web-configuration.md), in TOML as all
settings are, and ``bearer_token_file`` besides::

    bearer_token_file = "token"                # one token a line

    [tls_server_config]
    cert_file = "tls.crt"
    key_file = "tls.key"
    client_ca_file = "ca.crt"
    client_auth_type = "RequireAndVerifyClientCert"
    min_version = "TLS12"

    [basic_auth_users]
    prometheus = "$2y$10$..."                  # bcrypt, as of `htpasswd -nBC 10 prometheus`

A path is taken from where the file is.  No sentence of this module holds a part of a secret.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from agent.settings.settings_file import read_settings_file

#: What OpenSSL can be told; the other types of Go's would take a certificate without checking it.
CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
TLS_KEYS = ("cert_file", "key_file", "client_ca_file", "client_auth_type", "min_version")
#: The cost is a power of two: 14 takes 0.8 s of CPU for a password, and it would be the agent's.
_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{53}")
#: What may stand in a header as a token (RFC 6750); shorter ones could be guessed.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,4096}=*")
MOST_USERS, MOST_TOKENS, MOST_TOKEN_BYTES = 64, 16, 64 * 1024


class WebConfigError(Exception):
    """The web configuration is unusable.  ``faults`` has one sentence for each fault, all of them."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file and the files that it names say now."""

    #: Every file that was read: when one of them changes, all are read again.
    files: tuple[Path, ...]
    tls: ssl.SSLContext | None = None
    #: User to bcrypt hash.
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    #: SHA-256 of each token: what is compared is of one length.
    tokens: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def asks(self) -> bool:
        """Whether a login is asked for."""
        return bool(self.users or self.tokens)


def load_web_config(path: Path) -> WebConfig:
    """Read it.  Raises WebConfigError."""
    try:
        tree = read_settings_file(path)
    except ValueError as error:
        raise WebConfigError([f"{error}"]) from None
    faults: list[str] = []
    files = [path]

    def file(table: Mapping[str, Any], key: str) -> Path | None:
        text = table.get(key)
        if text is None or (isinstance(text, str) and text and "\0" not in text):
            if text is not None:
                files.append(path.parent / text)
            return path.parent / text if text is not None else None
        faults.append(f"{key}: must be the path of a file")
        return None

    allowed = ("tls_server_config", "basic_auth_users", "bearer_token_file")
    faults += _unknown("", tree, allowed)
    sections = {}
    for name in allowed[:2]:
        sections[name] = found = tree.get(name, {})
        if not isinstance(found, dict):
            faults.append(f"{name}: must be a table, [{name}]")
            sections[name] = {}
    tls = _tls(sections["tls_server_config"], file, faults) if sections["tls_server_config"] else None
    users = dict(_users(sections["basic_auth_users"], faults))
    token_file = file(tree, "bearer_token_file")
    tokens = tuple(_tokens(token_file, faults)) if token_file else ()
    if not faults and not tree:
        faults.append("it asks for nothing: give it tls_server_config, basic_auth_users or bearer_token_file")
    if faults:
        raise WebConfigError(faults)
    return WebConfig(tuple(files), tls, users, tokens)


def _unknown(where: str, table: Mapping[str, Any], allowed: tuple[str, ...]) -> Iterator[str]:
    for key in table:
        if key not in allowed:
            yield f"{where}{key[:60]!r}: no such key; known: {', '.join(allowed)}"


def _tls(
    table: Mapping[str, Any], file: Callable[[Mapping[str, Any], str], Path | None], faults: list[str]
) -> ssl.SSLContext | None:
    before = len(faults)
    faults += _unknown("tls_server_config.", table, TLS_KEYS)
    cert, key, authority = (file(table, name) for name in TLS_KEYS[:3])
    for name in TLS_KEYS[:2]:
        if name not in table:
            faults.append(f"tls_server_config.{name}: must be set")
    wanted = _one_of("client_auth_type", table, CLIENT_AUTH, "NoClientCert", faults)
    version = _one_of("min_version", table, VERSIONS, "TLS12", faults)
    if (wanted != ssl.CERT_NONE) != ("client_ca_file" in table):
        faults.append("tls_server_config: client_ca_file and a client_auth_type that verifies go together")
    if len(faults) > before or cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = version
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make the agent compute without an end
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=_no_passphrase)
    except (OSError, ValueError) as error:
        faults.append(f"tls_server_config: cert_file {cert}, key_file {key}: {_why(error)}")
    if authority is not None:
        context.verify_mode = wanted
        try:
            context.load_verify_locations(authority)
        except (OSError, ValueError) as error:
            faults.append(f"tls_server_config: client_ca_file {authority}: {_why(error)}")
    return context


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted, and nobody is there to type its passphrase")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "not in PEM form").replace("_", " ").lower()
        return reason if error.reason != "KEY_VALUES_MISMATCH" else "the key is not that of the certificate"
    return getattr(error, "strerror", None) or str(error)


def _one_of(key: str, table: Mapping[str, Any], known: Mapping[str, Any], default: str, faults: list[str]) -> Any:
    given = table.get(key, default)
    if not isinstance(given, str) or given not in known:
        faults.append(f"tls_server_config.{key} = {str(given)[:60]!r}: must be one of {', '.join(known)}")
        given = default
    return known[given]


def _users(table: Mapping[str, Any], faults: list[str]) -> Iterator[tuple[str, bytes]]:
    if len(table) > MOST_USERS:
        faults.append(f"basic_auth_users: {len(table)} users; at most {MOST_USERS}")
    for user, stored in table.items():
        if not user or ":" in user or not user.isprintable():
            faults.append("basic_auth_users: a name must be printable and without a colon")
        elif not isinstance(stored, str) or not _BCRYPT.fullmatch(stored):
            faults.append(
                f"basic_auth_users.{user[:60]} = (not shown): must be a bcrypt hash with a cost of 4 to 14, "
                f"as `htpasswd -nBC 10 {user[:60]}` makes it"
            )
        else:
            yield user, stored.encode()
    if table:
        try:
            import bcrypt  # noqa: F401, PLC0415 - who names no user does not pay for it
        except ImportError:
            faults.append("basic_auth_users: needs the package bcrypt: pip install 'stallscope[web]'")


def _tokens(path: Path, faults: list[str]) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_TOKEN_BYTES + 1)
    except OSError as error:
        faults.append(f"bearer_token_file {path}: {error.strerror}")
        return
    lines = raw.decode("latin-1").split()
    if not 1 <= len(lines) <= MOST_TOKENS or not all(map(_TOKEN.fullmatch, lines)):
        faults.append(
            f"bearer_token_file {path}: must hold 1 to {MOST_TOKENS} tokens, one a line, each of 16 or more letters, digits "
            "and ._~+/- (made by: openssl rand -hex 32)"
        )
        return
    for token in lines:
        yield sha256(token.encode()).digest()


def stamps(files: tuple[Path, ...]) -> tuple[tuple[int, ...] | None, ...]:
    """What changes when one of these files does; a secret of Kubernetes is replaced by turning a link."""
    return tuple(_stamp(file) for file in files)


def _stamp(file: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev
