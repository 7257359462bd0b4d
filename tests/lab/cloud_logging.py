"""A Cloud Logging that is slow, full or silent on request, as a process of its own; real clients write to it.

It answers WriteLogEntries and ListLogEntries of google.logging.v2.LoggingServiceV2 over plaintext gRPC on 127.0.0.1. The
client package holds no base class of a server, so these are generic handlers over the package's own messages; other methods
are UNIMPLEMENTED. A list holds the newest accepted entries, of a query only what stands in _CLAUSE is understood (anything
else is INVALID_ARGUMENT), and is delayed, refused and hung as a write is; the quota is that of writes.
It keeps the truth about every entry: with what the app says it emitted, depth and age of a backlog are known exactly.

An entry's sequence number is `seq` of its labels, of its jsonPayload or of jsonPayload.metadata (there winston puts it),
or `seq=N` in its text (textPayload, or jsonPayload.message). An entry without one is counted, and listed with None.

Commands, one JSON object per line on standard input, each answered with one line; it ends with its input.

Over 300 lines, because it is a script without a package around it and can take nothing from its neighbours.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

if TYPE_CHECKING:
    from typing import Self  # hooks are tried with older Pythons, which import this module too

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
#: Entries that a list is made from: the newest so many that were accepted.
MOST_LISTED = 1000
#: logName="N", logName=("N" OR "M"), timestamp>="T", <= and < as well, the same of receiveTimestamp, resource.labels.K="V",
#: labels.K="V"; joined by AND and OR with parentheses.
_CLAUSE = re.compile(
    r'(?P<field>logName|(?:receiveT|t)imestamp|(?:resource\.)?labels\.\w+)(?P<how>[<>]?=|<)(?P<values>"[^"]*"|\("[^"]*"(?: OR "[^"]*")*\))'
)


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
    status: str = ""
    """Name of the gRPC status that every request is refused with, such as PERMISSION_DENIED; empty: none."""
    garble: bool = False
    """The answers are no messages."""


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

    def __init__(self, **settings: float | str | None) -> None:
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

    def set(self, **settings: float | str | None) -> None:
        """Change what is named (the fields of Settings); the rest stays."""
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

    def lists(self) -> int:
        """How many lists were asked for."""
        found: int = self._ask({"get": "lists"})
        return found

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


def selected(query: str, entries: Iterable[Any]) -> list[Any]:
    """Of these google.logging.v2.LogEntry messages those that the query finds. Raises ValueError for what it does not know."""
    fits = _condition(query)
    return [entry for entry in entries if fits(entry)]


def _condition(query: str) -> Callable[[Any], bool]:
    """What a query asks of an entry. Raises ValueError."""
    for word, joined in ((" OR ", any), (" AND ", all)):
        if len(parts := _split(query, word)) > 1:
            tests = [_condition(part) for part in parts]
            return lambda entry, joined=joined: joined(test(entry) for test in tests)  # type: ignore[misc]
    query = query.strip()
    if query.startswith("("):
        return _condition(query[1:-1])
    return _clause(query)


def _split(query: str, word: str) -> list[str]:
    """The parts between the words that stand in no parentheses."""
    parts, depth = [""], 0
    for piece in re.split(f"([()]|{word})", query):
        depth += (piece == "(") - (piece == ")")
        if piece == word and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _clause(query: str) -> Callable[[Any], bool]:
    from google.protobuf.timestamp_pb2 import Timestamp  # type: ignore[import-untyped]

    found = _CLAUSE.fullmatch(query)
    if not found or (found["how"] == "=") == found["field"].lower().endswith("timestamp"):
        raise ValueError(f"not understood: {query}")
    field, values = found["field"], re.findall('"([^"]*)"', found["values"])
    if found["how"] != "=":
        given = Timestamp()
        given.FromJsonString(values[0])
        bound = given.ToNanoseconds()
        compare = {">=": operator.ge, "<=": operator.le, "<": operator.lt}[found["how"]]
        stamp = "timestamp" if field == "timestamp" else "receive_timestamp"
        return lambda entry: bool(compare(getattr(entry, stamp).ToNanoseconds(), bound))
    if field == "logName":
        return lambda entry: unquote(entry.log_name) in map(unquote, values)
    name = field.rpartition(".")[2]
    ofresource = field.startswith("resource.")
    return lambda entry: (entry.resource.labels if ofresource else entry.labels).get(name) in values


class _Server:
    """The state behind the two methods."""

    def __init__(self, reply: Any, listed: Any, codes: Any) -> None:
        self._reply, self._listed, self._codes = reply, listed, codes
        self._kept: deque[Any] = deque(maxlen=MOST_LISTED)
        self.settings = Settings()
        self._answering = asyncio.Event()
        self._recent: deque[float] = deque()  # when the requests within the quota arrived
        self._totals = Counter(rpcs=0, open=0, accepted=0, rejected=0, abandoned=0)
        self._lists = 0
        self._sizes: Counter[int] = Counter()
        self._entries: list[Entry] = []

    def do(self, command: Mapping[str, Any]) -> Any:
        if "set" in command:
            self.settings = Settings(**command["set"])
            (self._answering.clear if self.settings.hang else self._answering.set)()
            return None
        if command["get"] == "entries":
            return self._entries
        if command["get"] == "lists":
            return self._lists
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
        await self._abort_if(refuse, context)
        self._keep(request, received)
        return self._reply

    async def list(self, request: Any, context: Any) -> Any:
        """ListLogEntries."""
        refuse, self._lists = self.settings.fail or bool(self.settings.status), self._lists + 1
        await self._answering.wait()
        await asyncio.sleep(self.settings.delay)
        await self._abort_if(refuse, context)
        try:
            found = selected(request.filter, self._kept)
        except ValueError as error:
            await context.abort(self._codes.INVALID_ARGUMENT, str(error))
        found.sort(key=lambda e: e.timestamp.ToNanoseconds(), reverse=request.order_by == "timestamp desc")
        return self._listed(entries=found[: request.page_size or 50])

    async def _abort_if(self, refuse: bool, context: Any) -> None:
        if self.settings.status:
            await context.abort(self._codes[self.settings.status], "refused, as the test wants it")
        if refuse:
            words = "Quota exceeded for quota metric 'Write requests' and limit 'Write requests per minute'"
            await context.abort(self._codes.RESOURCE_EXHAUSTED, words)

    def _keep(self, request: Any, received: float) -> None:
        """Remember accepted entries as the log service does: what the request says once holds for all of them."""
        for entry in request.entries:
            entry.log_name = entry.log_name or request.log_name
            if not entry.resource.type:
                entry.resource.CopyFrom(request.resource)
            entry.receive_timestamp.FromNanoseconds(int(received * 1e9))
            if not entry.HasField("timestamp"):
                entry.timestamp.CopyFrom(entry.receive_timestamp)
            self._kept.append(entry)

    def serialise(self, message: Any) -> bytes:
        """The bytes of an answer."""
        return b"\xff\xff" if self.settings.garble else bytes(message.SerializeToString())

    def _refuses(self) -> bool:
        now = time.monotonic()
        while self._recent and self._recent[0] <= now - 60:
            self._recent.popleft()
        if (
            self.settings.fail
            or self.settings.status
            or (self.settings.quota is not None and len(self._recent) >= self.settings.quota)
        ):
            return True
        self._recent.append(now)
        return False


def _say(record: Any) -> None:
    data = (json.dumps(record) + "\n").encode()
    while data:
        data = data[os.write(1, data) :]


async def _serve() -> None:
    import grpc
    from google.cloud.logging_v2 import types

    state = _Server(types.WriteLogEntriesResponse.pb()(), types.ListLogEntriesResponse.pb(), grpc.StatusCode)
    methods = {
        name: grpc.unary_unary_rpc_method_handler(answer, request.pb().FromString, state.serialise)
        for name, answer, request in (
            ("WriteLogEntries", state.write, types.WriteLogEntriesRequest),
            ("ListLogEntries", state.list, types.ListLogEntriesRequest),
        )
    }
    service = grpc.method_handlers_generic_handler("google.logging.v2.LoggingServiceV2", methods)
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
