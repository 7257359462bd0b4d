"""An asyncio that was loaded without OpenSSL, and what needs it later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
