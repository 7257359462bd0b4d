"""A Cloud Logging that is slow, full or silent on request, as a process of its own; real clients write to it.

It answers google.logging.v2.LoggingServiceV2/WriteLogEntries over plaintext gRPC on 127.0.0.1. The client package holds
no base class of a server, so this is a generic handler over the package's own messages; other methods are UNIMPLEMENTED.
It keeps the truth about every entry: with what the app says it emitted, depth and age of a backlog are known exactly.

An entry's sequence number is `seq` of its labels, of its jsonPayload or of jsonPayload.metadata (there winston puts it),
or `seq=N` in its text (textPayload, or jsonPayload.message). An entry without one is counted, and listed with None.

Commands, one JSON object per line on standard input, each answered with one line; it ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    import google.cloud.logging
    from google.cloud.logging_v2.handlers import CloudLoggingHandler

    from tests.lab.process import Running

HOST = "127.0.0.1"
PROJECT = "stallscope-lab"
#: The variable that tells an app of the lab the server's host:port.
ADDRESS = "LAB_CLOUD_LOGGING"
#: Entries kept with their times, about 100 bytes each; further ones are counted only.
MOST_ENTRIES = 1_000_000
_MESSAGE_BYTES = 16 * 1024 * 1024  # the real limit of a request is 10 MB
_SEQUENCE = re.compile(r"\bseq=(\d+)")


class Settings(NamedTuple):
    """How requests that arrive from now on are answered."""

    delay: float = 0.0
    """Seconds until the answer, a refusal too."""
    fail: bool = False
    """Every request is refused with RESOURCE_EXHAUSTED (429)."""
    quota: int | None = None
    """Requests accepted in any 60 s; further ones are refused as with `fail`. None: any number."""
    hang: bool = False
    """No answer until this is False again; then also to those that waited."""


class Entry(NamedTuple):
    """An entry that was answered; times are the host's wall clock, as the clients' own timestamps are."""

    sequence: int | None
    timestamp: float
    """What the client says when it was emitted."""
    received: float
    answered: float
    accepted: bool
    """False: refused, or the client gave up waiting."""


class Waiting(NamedTuple):
    entries: int
    oldest_seconds: float | None
    """None when nothing waits."""


def waiting(emitted: Mapping[int, float], entries: Iterable[Entry], at: float, *, lost: bool = True) -> Waiting:
    """The truth at the moment `at`: what was emitted (time by sequence number) and not yet accepted.

    An entry that was refused no longer waits, unless `lost` is False: for a client that sends it again.
    """
    gone = {e.sequence for e in entries if e.answered <= at and (e.accepted or lost)}
    times = [when for sequence, when in emitted.items() if when <= at and sequence not in gone]
    return Waiting(len(times), at - min(times) if times else None)


class CloudLoggingServer:
    """`with CloudLoggingServer(delay=0.03) as server: run(app, env=environment(server))`

    Each method returns when it is in force. The arguments are those of Settings.
    """

    def __init__(self, **settings: float | None) -> None:
        self._settings = Settings(**settings)  # type: ignore[arg-type]
        self.address = ""
        """host:port; plaintext, no credentials."""
        self._running: Running | None = None

    def __enter__(self) -> Self:
        from tests.lab.process import Running  # the script has no package around it

        words = [sys.executable, "-P", "-B", str(Path(__file__).resolve())]
        self._running = Running(words, tell=True)
        try:
            port = json.loads(self._running.wait_for('{"port":').text)["port"]
            self.address = f"{HOST}:{port}"
            self.set(**self._settings._asdict())
        except BaseException:
            self._running.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.close()

    def set(self, **settings: float | None) -> None:
        """Change what is named: delay, fail, quota, hang; the rest stays."""
        self._settings = self._settings._replace(**settings)  # type: ignore[arg-type]
        self._ask({"set": self._settings._asdict()})

    def counts(self) -> dict[str, Any]:
        """`rpcs` (arrived), `open` (of those, without an answer), `accepted`, `rejected`, `abandoned` (entries: refused; the
        client gave up), `entries_per_rpc` (how many requests brought so many entries).
        """
        found: dict[str, Any] = self._ask({"get": "counts"})
        found["entries_per_rpc"] = {int(size): count for size, count in found["entries_per_rpc"].items()}
        return found

    def entries(self) -> list[Entry]:
        """Every entry that was answered, in that order."""
        return [Entry(*each) for each in self._ask({"get": "entries"})]

    def _ask(self, command: Mapping[str, Any]) -> Any:
        assert self._running is not None
        self._running.tell(json.dumps(command))
        return json.loads(self._running.wait_for('{"answer":').text)["answer"]


def environment(server: CloudLoggingServer) -> dict[str, str]:
    """Variables for an app that writes to the server; add them to those that it needs anyway.

    No variable sends the real clients elsewhere: the app reads LAB_CLOUD_LOGGING. In Python it uses `handler()` below; in
    Node `new Logging({projectId, apiEndpoint: host, port, sslCreds: grpc.credentials.createInsecure()})`, which are also
    options of logging-winston and logging-bunyan. The others keep both from looking for the metadata server.
    """
    return {
        ADDRESS: server.address,
        "GOOGLE_CLOUD_PROJECT": PROJECT,
        "METADATA_SERVER_DETECTION": "none",
        "GCE_METADATA_HOST": "127.0.0.1:9",
        "NO_GCE_CHECK": "true",
        "no_proxy": HOST,
        "NO_PROXY": HOST,
    }


def client(address: str) -> google.cloud.logging.Client:
    """The real Python client, on an insecure channel and without credentials."""
    import google.cloud.logging
    import grpc
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.logging_v2 import _gapic
    from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client
    from google.cloud.logging_v2.services.logging_service_v2.transports import LoggingServiceV2GrpcTransport

    made = google.cloud.logging.Client(project=PROJECT, credentials=AnonymousCredentials())
    transport = LoggingServiceV2GrpcTransport(channel=grpc.insecure_channel(address))
    made._logging_api = _gapic._LoggingAPI(LoggingServiceV2Client(transport=transport), made)
    return made


def handler(address: str) -> CloudLoggingHandler:
    """The real logging handler, with its background thread; a given resource keeps it from asking the metadata server."""
    from google.cloud.logging_v2.handlers import CloudLoggingHandler
    from google.cloud.logging_v2.resource import Resource

    return CloudLoggingHandler(client(address), resource=Resource(type="global", labels={"project_id": PROJECT}))


def sequence_of(entry: Any) -> int | None:
    """The number that the test put into the entry, a google.logging.v2.LogEntry."""
    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    payload = MessageToDict(entry.json_payload)
    metadata = payload.get("metadata")
    places = (dict(entry.labels), payload, metadata if isinstance(metadata, dict) else {})
    number: Any = next((place["seq"] for place in places if "seq" in place), None)
    if number is None and (found := _SEQUENCE.search(entry.text_payload or str(payload.get("message")))):
        number = found[1]
    try:
        return int(number)
    except (TypeError, ValueError):
        return None


class _Server:
    """The state behind the one method."""

    def __init__(self, reply: Any, exhausted: Any) -> None:
        self._reply, self._exhausted = reply, exhausted
        self.settings = Settings()
        self._answering = asyncio.Event()
        self._recent: deque[float] = deque()  # when the requests within the quota arrived
        self._totals = Counter(rpcs=0, open=0, accepted=0, rejected=0, abandoned=0)
        self._sizes: Counter[int] = Counter()
        self._entries: list[Entry] = []

    def do(self, command: Mapping[str, Any]) -> Any:
        if "set" in command:
            self.settings = Settings(**command["set"])
            (self._answering.clear if self.settings.hang else self._answering.set)()
            return None
        if command["get"] == "entries":
            return self._entries
        return {**self._totals, "entries_per_rpc": self._sizes}

    async def write(self, request: Any, context: Any) -> Any:
        """WriteLogEntries."""
        received, refuse = time.time(), self._refuses()
        entries = [(sequence_of(e), e.timestamp.seconds + e.timestamp.nanos * 1e-9) for e in request.entries]
        self._sizes[len(entries)] += 1
        self._totals.update(rpcs=1, open=1)
        verdict = "abandoned"
        try:
            await self._answering.wait()
            await asyncio.sleep(self.settings.delay)
            verdict = "rejected" if refuse else "accepted"
        finally:
            answered = time.time()
            self._totals.update({verdict: len(entries), "open": -1})
            room = max(0, MOST_ENTRIES - len(self._entries))
            self._entries += [Entry(s, t, received, answered, verdict == "accepted") for s, t in entries[:room]]
        if refuse:
            words = "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute'"
            await context.abort(self._exhausted, words)
        return self._reply

    def _refuses(self) -> bool:
        now = time.monotonic()
        while self._recent and self._recent[0] <= now - 60:
            self._recent.popleft()
        if self.settings.fail or (self.settings.quota is not None and len(self._recent) >= self.settings.quota):
            return True
        self._recent.append(now)
        return False


def _say(record: Any) -> None:
    data = (json.dumps(record) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


async def _serve() -> None:
    import grpc
    from google.cloud.logging_v2.types import WriteLogEntriesRequest, WriteLogEntriesResponse

    request, response = WriteLogEntriesRequest.pb(), WriteLogEntriesResponse.pb()
    state = _Server(response(), grpc.StatusCode.RESOURCE_EXHAUSTED)
    method = grpc.unary_unary_rpc_method_handler(state.write, request.FromString, response.SerializeToString)
    service = grpc.method_handlers_generic_handler("google.logging.v2.LoggingServiceV2", {"WriteLogEntries": method})
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", _MESSAGE_BYTES)])
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    _say({"port": port})
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        _say({"answer": state.do(json.loads(line))})
    os._exit(0)  # without waiting for requests that are still held


if __name__ == "__main__":
    asyncio.run(_serve())
