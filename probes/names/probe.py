"""How long the names take that the app looks up, and how many questions each look-up costs.

Looked up are the hosts of the configured databases and ``names.watched``, as /etc/resolv.conf says it here: in a pod every
container has the same one.  Names in /etc/hosts and IP addresses are asked of nobody.  Rare, a slot a minute; a look-up that is
slow or goes unanswered is made again, twice, at once: the second answer of a name server that had to ask others first comes
from its cache, one of a slow name server does not.

Cost: 0.6 ms of CPU for a look-up of eight questions on loopback.  It asks no system library, which would need a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from probes.kernel_files import read_text, why
from probes.names import lookup, resolv_conf
from probes.names.lookup import Ask, LookedUp
from probes.reading import Code, NoData, Reading, Stability, Unseen, gauge, increment
from probes.record import dataclass
from probes.registration import Context, Planned, Registration
from probes.section import AfterValidator, Field, Section

#: Names that are looked up in each slot; of more, these first.
MOST_NAMES = 4
#: A look-up that took this long is made again so often, after such a pause, seconds.
SLOW_SECONDS, AGAIN, PAUSE_SECONDS = 0.1, 2, 0.2
#: CPU of one slot, and upper bound of one reading (measured: 2 ms with four names, 2400 bytes).
CPU_SECONDS, READING_BYTES = 2e-3, 2_500
#: Four names that are silent: each is given up after :data:`probes.names.lookup.MOST_SECONDS`, three times.
TIMEOUT = 3 * lookup.MOST_SECONDS + 10.0

_ONLY_ADDRESSES = Unseen(
    "every configured database is reached by an IP address, a socket or /etc/hosts: no name server is asked",
    Code.ABSENT,
)


def _name(text: str) -> str:
    if not resolv_conf.is_name(text):
        raise ValueError("must be a host name like db.example.com, with a final dot or without")
    return text


class Names(Section):
    """Timed look-ups of names that the app uses."""

    stability: ClassVar[Stability] = "beta"

    watched: tuple[Annotated[str, AfterValidator(_name)], ...] = Field(
        (), max_length=MOST_NAMES, description="Names that are looked up beside the hosts of configured databases."
    )
    every_seconds: float = Field(60.0, ge=10, le=3600, description="Time between two slots.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesReading(Reading):
    """The look-ups of one slot."""

    probe: ClassVar[str] = "names"
    stability: ClassVar[Stability] = "beta"

    lookup_seconds: Mapping[str, float] | None = gauge(
        "What the name servers took for one look-up, the quickest of this slot", by="name"
    )
    first_lookup_seconds: Mapping[str, float] | None = gauge("The same of the slot's first look-up", by="name")
    questions: Mapping[str, float] | None = gauge("Questions that one look-up sends (ndots and search list)", by="name")
    lookups: Mapping[str, float] | None = increment("Look-ups that were made", by="name")
    slow_lookups: Mapping[str, float] | None = increment("Of them those that took 0.1 s or longer", by="name")
    unanswered: Mapping[str, float] | None = increment("Questions that no name server answered in time", by="name")
    not_found: Mapping[str, float] | None = increment("Look-ups that found no address", by="name")
    ndots: float | None = gauge("Dots that a name must have to be tried as it stands first (options ndots)")
    search_domains: float | None = gauge("Domains of the search list")
    #: When the slow ones ran, monotonic seconds: what was taken from this process meanwhile is not theirs.
    slow_between: tuple[tuple[float, float], ...] = ()
    #: Whether the times are the kernel's: else they hold what this process slept.
    stamped: bool = True


class NamesProbe:
    """Looks the names up that ``names`` gives; ``ask`` sends one question.  A slot has ``within`` seconds."""

    name = "names"
    target = ""
    reading_type = NamesReading

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        *,
        ask: Ask = lookup.ask,
        within: float = TIMEOUT,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._names, self._ask, self._root, self._clock, self._sleep = names, ask, root, clock, sleep
        self._within = within
        self._taken: float | None = None

    async def read(self) -> NamesReading:
        """Look each name up.  Raises NoData where there is none, or no resolv.conf."""
        known: frozenset[str] = frozenset()
        with suppress(OSError):
            known = resolv_conf.hosts(read_text(self._root / "etc/hosts"))
        wanted = (name for name in dict.fromkeys(self._names()) if resolv_conf.is_name(name))
        names = [name for name in wanted if name.lower() not in known][:MOST_NAMES]
        if not names:
            raise NoData(_ONLY_ADDRESSES, "names.watched: the names that the app looks up")
        try:
            conf = resolv_conf.parse(read_text(self._root / "etc/resolv.conf"))
        except OSError as error:
            raise NoData(why(error), "mount /etc/resolv.conf") from error
        found: dict[str, list[LookedUp]] = {}
        unseen: dict[str, Unseen] = {}
        async with lookup.stamping(self._sleep):
            results = await asyncio.gather(*(self._look_up(name, conf) for name in names), return_exceptions=True)
        for name, result in zip(names, results, strict=True):
            if isinstance(result, OSError):
                reason = why(result)
                unseen["lookup_seconds"] = reason.reworded(f"{name}: no name server can be asked: {reason}")
            elif isinstance(result, BaseException):
                raise result
            else:
                found[name] = result
        if not found:
            raise NoData(unseen["lookup_seconds"], "check the network of this container and its name servers")
        taken = self._clock()
        seconds = 0.0 if self._taken is None else max(0.0, taken - self._taken)
        self._taken = taken
        slow = [each for done in found.values() for each in done if each.seconds >= SLOW_SECONDS]
        return NamesReading(
            taken=taken, seconds=seconds, unseen=unseen, **sum_up(found),
            ndots=float(conf.ndots), search_domains=float(len(conf.search)),
            slow_between=tuple((each.began, each.ended) for each in slow),
            stamped=all(each.stamped for done in found.values() for each in done),
        )  # fmt: skip

    async def aclose(self) -> None:
        """Nothing is held open."""

    async def _look_up(self, name: str, conf: resolv_conf.ResolvConf) -> list[LookedUp]:
        done = [await lookup.look_up(name, conf, self._ask, clock=self._clock)]
        while len(done) <= AGAIN and done[0].seconds >= SLOW_SECONDS and self._has_time(done):
            await self._sleep(PAUSE_SECONDS)
            done.append(await lookup.look_up(name, conf, self._ask, clock=self._clock))
        return done

    def _has_time(self, done: Sequence[LookedUp]) -> bool:
        """Whether one more look-up ends within the slot, whatever it meets: without an end there is no reading at all."""
        return done[-1].ended - done[0].began + PAUSE_SECONDS + lookup.MOST_SECONDS < self._within


def sum_up(found: Mapping[str, Sequence[LookedUp]]) -> dict[str, Any]:
    """The fields by name."""
    return {
        "lookup_seconds": {name: min(each.seconds for each in done) for name, done in found.items()},
        "first_lookup_seconds": {name: done[0].seconds for name, done in found.items()},
        "questions": {name: float(max(each.questions for each in done)) for name, done in found.items()},
        "lookups": {name: float(len(done)) for name, done in found.items()},
        "slow_lookups": {
            name: float(sum(each.seconds >= SLOW_SECONDS for each in done)) for name, done in found.items()
        },
        "unanswered": {name: float(sum(each.unanswered for each in done)) for name, done in found.items()},
        "not_found": {name: float(sum(not each.found for each in done)) for name, done in found.items()},
    }


def probes(context: Context) -> Iterator[Planned]:
    """One, where the settings name a host: those of databases are known to whoever was registered before."""
    settings = context.settings(Names)
    within = min(TIMEOUT, settings.every_seconds)
    if settings.watched or context.host_names:
        yield Planned(
            make=lambda: NamesProbe(
                lambda: (*settings.watched, *(name for each in context.host_names for name in each())),
                within=within, root=context.root,
            ),
            every=settings.every_seconds, timeout=within, cpu_seconds=CPU_SECONDS,
            history_bytes=READING_BYTES,
        )  # fmt: skip


REGISTRATION = Registration(probes, readings=(NamesReading,))
