"""Real credentials over real TLS: a service account's key, a token server, and a log service with a certificate."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.cloud.logging_v2 import types

from tests.integration.conftest import ROOT, SECRET, listening
from tests.lab.cloud_logging import PROJECT

#: Writes one entry and tells its class of failure.  A process of its own: gRPC reads its roots once.
WRITE = """
import sys
from probes.gcp.cloud_api import CallFailed, CloudApi
api = CloudApi("", sys.argv[1], timeout=5.0)
try:
    for _ in range(2):
        api.write("canary", [{"text_payload": "x"}])
        api.close()
    print("ok", api.project)
except CallFailed as failure:
    print(failure.reason, failure)
"""


class Service(NamedTuple):
    port: int
    certificate: Path
    headers: list[str]
    """The authorization of each request."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a key and a certificate for localhost."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here: apt-get install openssl")
    folder = tmp_path_factory.mktemp("keys")
    command = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([openssl, *command.split(), *names], cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


@pytest.fixture
def service(keys: Path) -> Iterator[Service]:
    """A log service over TLS that takes everything."""
    headers: list[str] = []

    def write(_: Any, context: grpc.ServicerContext) -> Any:
        headers.extend(str(value) for key, value in context.invocation_metadata() if key == "authorization")
        return types.WriteLogEntriesResponse.pb()()

    handler = grpc.unary_unary_rpc_method_handler(
        write, types.WriteLogEntriesRequest.pb().FromString, types.WriteLogEntriesResponse.pb().SerializeToString
    )
    name = "google.logging.v2.LoggingServiceV2"
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"WriteLogEntries": handler}),))
    secrets = [((keys / "key.pem").read_bytes(), (keys / "cert.pem").read_bytes())]
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials(secrets))
    server.start()
    yield Service(port, keys / "cert.pem", headers)
    server.stop(None).wait()


class Token(BaseHTTPRequestHandler):
    """Gives a token, or refuses with a text that holds a secret."""

    status, body = 200, {"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"}

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(self.status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(self.body).encode())

    def log_message(self, *_: Any) -> None: ...


class Refusal(Token):
    status, body = 400, {"error": "invalid_grant", "error_description": SECRET}


def write(service: Service, keys: Path, handler: type[Token], **more: str) -> subprocess.CompletedProcess[str]:
    with listening(handler) as port:
        account = keys / "account.json"
        account.write_text(json.dumps({
            "type": "service_account", "project_id": PROJECT, "private_key_id": "1", "client_email": "a@b.example",
            "private_key": (keys / "key.pem").read_text(), "token_uri": f"http://127.0.0.1:{port}/token",
        }))  # fmt: skip
        environ = {
            "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "GOOGLE_APPLICATION_CREDENTIALS": str(account),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(service.certificate), "NO_GCE_CHECK": "true", "NO_PROXY": "*",
            **more,
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, "-c", WRITE, f"localhost:{service.port}"],
            env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip


def test_the_environments_credentials_open_the_way_and_name_the_project(service: Service, keys: Path) -> None:
    done = write(service, keys, Token)
    assert done.stdout.split() == ["ok", PROJECT], done.stderr
    assert service.headers == [f"Bearer {SECRET}"] * 2


def test_a_token_that_is_refused_is_reported_as_credentials_and_no_word_of_it(service: Service, keys: Path) -> None:
    done = write(service, keys, Refusal)
    assert done.stdout.split()[0] == "credentials", done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert service.headers == []


def test_a_certificate_that_is_not_trusted_ends_before_any_token_is_sent(service: Service, keys: Path) -> None:
    done = write(service, keys, Token, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH="")
    assert done.stdout.split()[0] == "unavailable", done.stdout + done.stderr
    assert service.headers == []
