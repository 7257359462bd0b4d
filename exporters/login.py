"""Who is asking: the web configuration as it is now, and whether a request bears a login that it knows.

The files are looked at when somebody asks, every few seconds at most, and read again when one has changed: certificates,
tokens and passwords rotate without a restart.  What cannot be used is told, and what was in force stays.

What a password costs to check is what makes it hard to guess: some 60 ms of CPU with bcrypt's cost of 10.  It would be the
app's CPU, so a password that was right is remembered (as a digest with a key of this process) and costs nothing; the others
are checked one at a time, beside the event loop, for at most ``MOST_CPU_RATIO`` of a core, and a client that was wrong
has to wait.  A token of ``bearer_token_file`` cannot be guessed, so tries of it are not held back.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from pathlib import Path
from ssl import SSLContext

from exporters.guard import Refusal
from exporters.sparing import Sparing
from exporters.web_config import WebConfig, WebConfigError, load_web_config, stamps

#: Between two looks at the files.
LOOK_SECONDS = 5.0
#: Wrong passwords of one client at once, and how long each further one takes to be allowed.
WRONG_AT_ONCE, SECONDS_PER_WRONG = 10, 6.0
#: Clients whose mistakes are remembered.
MOST_CLIENTS = 256
#: CPU of checking passwords, share of one core, and how much of it may be spent at once.
MOST_CPU_RATIO, CPU_SECONDS_AT_ONCE = 0.01, 1.0
#: Requests that wait for their password to be checked: each holds a connection.
MOST_WAITING = 2
#: bcrypt takes no more.
MOST_PASSWORD_BYTES = 72

Headers = Mapping[bytes, bytes]


class Access:
    """The web configuration of a file as it is now."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises WebConfigError."""
        self._path, self._clock = path, clock
        self._now = load_web_config(path)
        self._stamps, self._look = stamps(self._now.files), clock() + LOOK_SECONDS
        self._unusable = Sparing(
            "http.web_config {path} has changed and cannot be used, what was in force stays: {why}"
        )

    def current(self) -> WebConfig:
        """What is in force."""
        if self._clock() >= self._look:
            self._look = self._clock() + LOOK_SECONDS
            if (found := stamps(self._now.files)) != self._stamps:
                self._read_again(found)
        return self._now

    def tls(self) -> SSLContext | None:
        """How a connection begins: ``None`` without TLS, which a change of the file does not switch on or off."""
        return self.current().tls

    def _read_again(self, found: tuple[tuple[int, ...] | None, ...]) -> None:
        try:
            new = load_web_config(self._path)
            if (new.tls is None) != (self._now.tls is None):
                raise WebConfigError(["tls_server_config: TLS is switched on and off by a restart"])
        except WebConfigError as error:
            self._unusable.note(
                path=self._path, why="; ".join(error.faults)
            )  # and tried again: half may have been written
            return
        self._now = new
        self._stamps = found if new.files == self._now.files else stamps(new.files)


class Login:
    """Says whether a request bears a login.  ``open_paths`` are answered without one."""

    def __init__(
        self, access: Access, open_paths: Collection[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._access, self._open, self._clock = access, frozenset(open_paths), clock
        self._key = secrets.token_bytes(32)
        #: CPU that passwords have taken, which is not measuring's.
        self.cpu_seconds = 0.0
        #: The login of each user that was right.
        self._known: dict[str, bytes] = {}
        self._wrong: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._cpu, self._reckoned = CPU_SECONDS_AT_ONCE, clock()
        self._one, self._waiting = asyncio.Lock(), 0
        self._told = Sparing("{count} requests refused for a wrong token, user or password, the last from {client}")

    async def refusal(self, path: str, client: str, headers: Headers) -> Refusal | None:
        """Why the request is not answered, ``None`` when it is."""
        config = self._access.current()
        if not config.asks or path in self._open:
            return None
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        if not kind:
            return self._unauthorized(config, "a login is needed")
        if kind.lower() == b"bearer" and config.tokens:
            right = _bears(config, given.strip())
        elif kind.lower() == b"basic" and config.users:
            decided = await self._password(config, client, given.strip())
            if isinstance(decided, Refusal):
                return decided
            right = decided
        else:
            return self._unauthorized(config, "this kind of login is not taken here")
        if right:
            return None
        self._told.note(client=client)
        return self._unauthorized(config, "wrong token, user or password")

    def _unauthorized(self, config: WebConfig, because: str) -> Refusal:
        kinds = [
            *(["Bearer"] if config.tokens else []),
            *(['Basic realm="stallscope", charset="UTF-8"'] if config.users else []),
        ]
        return Refusal(401, because, {"www-authenticate": ", ".join(kinds)})

    async def _password(self, config: WebConfig, client: str, given: bytes) -> bool | Refusal:
        try:
            user, colon, password = base64.b64decode(given, validate=True).decode().partition(":")
        except ValueError:
            return False
        if not colon or len(password.encode()) > MOST_PASSWORD_BYTES:
            return False
        # An unknown user takes as long as a known one.
        stored = config.users.get(user, next(iter(config.users.values())))
        digest = hmac.digest(self._key, b"\0".join((stored, user.encode(), password.encode())), "sha256")
        if user in config.users and hmac.compare_digest(digest, self._known.get(user, b"")):
            return True
        wait = self._wait(client)
        if wait > 0 or self._waiting >= MOST_WAITING:
            return Refusal(429, "too many logins were tried", {"retry-after": str(max(1, round(wait)))})
        self._waiting += 1
        try:
            async with self._one:
                matches, cpu = await asyncio.to_thread(_matches, password.encode(), stored)
        finally:
            self._waiting -= 1
        self._cpu -= cpu
        self.cpu_seconds += cpu
        if matches and user in config.users:
            self._known[user] = digest
            self._known = {name: known for name, known in self._known.items() if name in config.users}
            self._wrong.pop(client, None)
            return True
        return False

    def _wait(self, client: str) -> float:
        """Seconds until this client may try a password, 0 for now, which then counts as wrong until it was right."""
        now = self._clock()
        self._cpu = min(CPU_SECONDS_AT_ONCE, self._cpu + (now - self._reckoned) * MOST_CPU_RATIO)
        self._reckoned = now
        wrong, since = self._wrong.pop(client, (0.0, now))
        wrong = max(0.0, wrong - (now - since) / SECONDS_PER_WRONG)
        allowed = wrong <= WRONG_AT_ONCE - 1 and self._cpu > 0
        self._wrong[client] = (wrong + allowed, now)
        while len(self._wrong) > MOST_CLIENTS:
            self._wrong.popitem(last=False)
        if allowed:
            return 0.0
        return max((wrong - WRONG_AT_ONCE + 1) * SECONDS_PER_WRONG, -self._cpu / MOST_CPU_RATIO, 1.0)


def _bears(config: WebConfig, given: bytes) -> bool:
    """Whether this is one of the tokens; all are compared, and each in full."""
    digest = sha256(given).digest()
    return any([hmac.compare_digest(digest, token) for token in config.tokens])  # noqa: C419 - no early end


def _matches(password: bytes, stored: bytes) -> tuple[bool, float]:
    """(whether the password is that of the hash, CPU seconds), in a thread: bcrypt lets the event loop run."""
    import bcrypt  # noqa: PLC0415 - who names no user does not pay for it

    began = time.thread_time()
    try:
        found = bcrypt.checkpw(password, stored)
    except ValueError:  # a zero byte, or a salt that it does not like
        found = False
    return found, time.thread_time() - began
