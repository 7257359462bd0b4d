"""Are requests in flight?  The signal that tells CPU between requests from CPU during them.

On a platform that allots CPU only while a request is processed, the same container lives in two worlds;
which of them it is in can be told by nobody but the app, a proxy or the agent's own endpoint.  Sources:

* *pushed*: the app or a proxy posts the number to the agent (exact transitions, the best source);
* *file*: a file with a number, written by the app, and
* *gauge*: a gauge of the app's own metrics page: both are sampled on a slow cadence, and a sample speaks for its moment
  only, so where nothing else tells, nobody is convicted by them;
* *own*: requests that the agent serves itself, when the platform counts them.

The scraped page is not trusted: see :mod:`probes.metrics_page`.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar

from probes.app.in_flight import InFlight, Transition
from probes.cpu.registration import Suspension
from probes.kernel_files import why
from probes.metrics_page import fetch
from probes.metrics_page.samples import samples
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge
from probes.record import dataclass
from probes.registration import SLOT_CPU_SECONDS, Context, Planned, Registration
from probes.section import AfterValidator, Field, Preset, Section, http_url

_NOBODY = Unseen("nothing tells this agent when a request is in flight", Code.NOT_CONFIGURED)
_REMEDY = (
    'tell the agent: POST {"in_flight": n} to /requests-in-flight, or set requests.file or '
    "requests.metrics_url"
)  # fmt: skip


class Requests(Section):
    """How the agent learns whether a request is in flight.  All three may be used; any one that says so counts."""

    stability: ClassVar[Stability] = "stable"
    doctor: ClassVar[Preset] = {"every_seconds": 1.0}

    file: str = Field("", description="A file that holds the number of requests in flight.")
    metrics_url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="The app's metrics page, scraped for the gauge below."
    )
    metric: str = Field(
        "http_requests_in_flight|http_server_active_requests|http_requests_inprogress|in_flight_requests",
        description="Name of the gauge; alternatives separated by |.",
    )
    own: bool = Field(False, description="Count the requests that the agent itself serves.")
    every_seconds: float = Field(5.0, ge=0.5, le=60, description="Time between two slots of file and gauge.")
    timeout_seconds: float = Field(1.0, ge=0.1, le=10, description="Time-out of one scrape.")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsReading(Reading):
    """Requests in flight, and every change since the reading before."""

    probe: ClassVar[str] = "requests"
    stability: ClassVar[Stability] = "stable"

    in_flight: int = gauge("Requests in flight in the app, as reported by the configured sources.")
    transitions: tuple[Transition, ...] = ()
    sources: tuple[str, ...] = ()


class RequestsProbe:
    """Reads file and gauge when its slot is due and hands on what was pushed in between."""

    name = "requests"
    target = ""
    reading_type = RequestsReading

    def __init__(
        self,
        in_flight: InFlight,
        *,
        file: str = "",
        url: str | None = None,
        metric: str = "",
        timeout: float = 1.0,
        get: fetch.Get = fetch.fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_flight, self._get, self._clock = in_flight, get, clock
        self._file, self._url, self._timeout = file, url, timeout
        self._names = frozenset(metric.split("|"))
        self._taken = clock()

    async def read(self) -> RequestsReading:
        """Read every source.  Raises NoData while none of them has spoken."""
        problems: list[Unseen | None] = []
        if self._file:
            problems.append(self._read_file())
        if self._url:
            problems.append(await self._read_gauge(self._url))
        self._in_flight.drop_stale()
        if not self._in_flight.sources:
            known = [problem for problem in problems if problem is not None]
            raise NoData(known[0].reworded("; ".join(known)) if known else _NOBODY, _REMEDY)
        now, before = self._clock(), self._taken
        self._taken = now
        return RequestsReading(
            taken=now,
            seconds=now - before,
            in_flight=self._in_flight.total,
            transitions=self._in_flight.take(),
            sources=self._in_flight.sources,
        )

    def _read_file(self) -> Unseen | None:
        try:
            text = _read_regular(self._file)
            self._in_flight.set("file", max(0, int(text.split()[0])))
        except (OSError, ValueError, IndexError) as error:
            self._in_flight.forget("file")
            said = "is not a regular file that begins with a whole number"
            code = Code.MALFORMED
            if isinstance(error, OSError):
                said, code = error.strerror or "", why(error).code
            return Unseen(f"requests.file {self._file}: {said}", code)
        return None

    async def _read_gauge(self, url: str) -> Unseen | None:
        try:
            async with asyncio.timeout(self._timeout):
                text = await self._get(url)
            values = [value for _, _, value in samples(text, self._names)]
            if not values:
                raise ValueError("no such gauge on the page, or none that is a count")
            self._in_flight.set("gauge", int(sum(values)))
        except fetch.ERRORS as error:
            self._in_flight.forget("gauge")
            reason = fetch.reason(error)
            return reason.reworded(f"requests.metrics_url: {reason}")
        return None

    async def aclose(self) -> None:
        """Nothing is held open."""


def _read_regular(path: str) -> bytes:
    """The beginning of a regular file; a pipe or a device could block the loop and is refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError
        return os.read(fd, 64)
    finally:
        os.close(fd)


def probes(context: Context) -> Iterator[Planned]:
    """Always one, since anyone may push; what is pushed needs no slots of its own, only the next of the child's."""
    settings = context.settings(Requests)
    polled = settings.file or settings.metrics_url
    yield Planned(
        make=lambda: RequestsProbe(
            context.in_flight, file=settings.file, url=settings.metrics_url, metric=settings.metric,
            timeout=settings.timeout_seconds, get=context.pages.of(settings.metrics_url or ""),
        ),
        every=settings.every_seconds if polled else context.settings(Suspension).every_seconds,
        timeout=settings.timeout_seconds + 1,
        cpu_seconds=SLOT_CPU_SECONDS if settings.metrics_url else 0.0,
        history_bytes=0,
    )  # fmt: skip


REGISTRATION = Registration(probes, readings=(RequestsReading,))
