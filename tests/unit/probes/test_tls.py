"""An asyncio that was loaded without OpenSSL, and what needs it later."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.commands.report import pass_for
from agent.settings.otel_environ import Endpoint
from exporters.push import otlp
from exporters.push.alerts import Place
from exporters.push.kubernetes import KubernetesOutput
from exporters.push.post import Answer, Client, Request
from probes.metrics_page import fetch
from probes.tls import verifying
from tests.unit.exporters.web import certificate

ROOT = Path(__file__).resolve().parents[3]
#: An encrypted connection each way, of which both ends are here, in a process that began as `run` does.
SCRIPT = """
import sys
from agent.commands.start import leave_tls_out
leave_tls_out()
import asyncio
import probes
from probes.tls import for_asyncio
assert for_asyncio(None) is None
assert "ssl" not in sys.modules and "_ssl" not in sys.modules, "loaded for nothing"

import ssl

async def main():
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.set_ciphers("aNULL:@SECLEVEL=0")
    server_side.maximum_version = ssl.TLSVersion.TLSv1_2
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.check_hostname, client_side.verify_mode = False, ssl.CERT_NONE
    client_side.set_ciphers("aNULL:@SECLEVEL=0")
    client_side.maximum_version = ssl.TLSVersion.TLSv1_2

    async def answer(reader, writer):
        writer.write(await reader.readexactly(4) + b" yes")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=for_asyncio(server_side))
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=for_asyncio(client_side))
    writer.write(b"ping")
    assert await reader.read() == b"ping yes"
    assert writer.get_extra_info("cipher")
    writer.close()
    await writer.wait_closed()
    server.close()
    print("encrypted")

asyncio.run(asyncio.wait_for(main(), 20))
"""


def test_tls_works_in_an_asyncio_that_was_loaded_without_it() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT
    )
    assert (done.stdout, done.stderr, done.returncode) == ("encrypted\n", "", 0)


def test_an_asyncio_that_has_it_stays_as_it_is() -> None:
    script = (
        "import asyncio.sslproto, ssl\nbefore = asyncio.sslproto.SSLProtocol\n"
        "from agent.commands.start import leave_tls_out\nleave_tls_out()\nfrom probes.tls import for_asyncio\n"
        "context = ssl.create_default_context()\n"
        "assert for_asyncio(context) is context and asyncio.sslproto.SSLProtocol is before and 'ssl' in __import__('sys').modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, cwd=ROOT)


def of_otlp(authorities: Path) -> ssl.SSLContext:
    """The context that OTLP's requests are sent with."""
    kept: list[ssl.SSLContext | None] = []

    class Wire(Client):
        async def send(self, request: Request, seconds: float) -> Answer:
            kept.append(request.tls)
            return Answer(503)

    output = otlp.OtlpOutput.__new__(otlp.OtlpOutput)
    output._client, output._clock = Wire(), time.monotonic
    box = output._outbox("logs", Endpoint("https://otel", {}, 1.0, gzip=True, authorities_file=str(authorities)))
    assert box is not None
    sending = box._send

    async def run() -> None:
        await sending(b"", 1.0)

    asyncio.run(run())
    assert kept[0] is not None
    return kept[0]


def of_report(authorities: Path) -> ssl.SSLContext:
    """That of ``report --ca-file``."""
    context = pass_for(None, authorities).context
    assert context is not None
    return context


def of_events(authorities: Path) -> ssl.SSLContext:
    """That of Events to a cluster's API server."""
    account = authorities.parent
    (account / "token").write_text("t")
    (account / "ca.crt").write_bytes(authorities.read_bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "::1", "POD_UID": "u"}
    output = KubernetesOutput(1.0, Place("", "", "", "", ""), Quiet(), environ, account=account)
    asyncio.run(output._send(b"", 1.0))
    assert output._tls is not None
    return output._tls


class Quiet(Client):
    """Sends nothing."""

    async def send(self, request: Request, seconds: float) -> Answer:
        return Answer(201)


@pytest.mark.parametrize(
    "made",
    [
        of_otlp, of_report, of_events, lambda path: verifying(str(path)), lambda _: Client()._authorities(),
        lambda _: fetch._authorities(),
    ],
    ids=["otlp", "report", "events", "verifying", "webhook", "pages"],
)  # fmt: skip
def test_authorities_that_python_since_3_13_refuses_by_default_are_taken(
    made: Callable[[Path], ssl.SSLContext], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ssl.create_default_context

    def strict(**given: str | None) -> ssl.SSLContext:
        context = plain(cafile=given.get("cafile"))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    context = made(certificate(tmp_path))
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
