"""The vocabulary of measuring: what a probe is, what it returns, and how a field is described.

A :class:`Reading` is one frozen record of one probe at one moment.  Everything that is later said
about a number (its help text, whether it is a gauge or a counter, its unit, its metric name and its
JSON key) stands beside the field here, so that `/metrics`, `/health` and the reference page cannot
disagree.

Three answers exist for every field: a number, a zero, and *not observable here*.  The third is
``None`` with a reason in :attr:`Reading.unseen`; it is never written as ``0`` or ``NaN``, because a
zero from a counter that cannot count is how real teams lost months.

A reason is a sentence and a :class:`Code`.  The code decides, the sentence only tells: nothing looks
into a sentence, so any of them may be reworded.

This module is standard library only and imports nothing of the project: every other package may
import it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, runtime_checkable

from probes.record import dataclass

Kind = Literal["gauge", "increment", "histogram", "flag"]
#: What a name promises to whoever builds on it; docs/metrics.md and docs/configuration.md say what each level means.
Stability = Literal["stable", "beta", "internal"]

#: The unit suffixes a numeric field may end in; Prometheus base units, one meaning each.
UNITS = ("seconds", "bytes", "ratio", "cores", "pages")

_SPEC = "stallscope"
_NOTHING: Mapping[str, Unseen] = MappingProxyType({})


class Code(StrEnum):
    """The kind of reason why something is not known: what rules and views decide by."""

    ABSENT = "absent"
    """There is none here (no limit, no such process): an answer."""
    IDLE = "idle"
    """Nothing happened that could have been measured: an answer."""
    NOT_APPLICABLE = "not_applicable"
    """A source of this kind has no such number (a pipe knows bytes, not entries): an answer."""
    NOT_YET = "not_yet"
    """Another reading, or more time, is needed."""
    NOT_PERMITTED = "not_permitted"
    """It is there, and this process or role may not read it."""
    NOT_CONFIGURED = "not_configured"
    """Nobody said where to look."""
    CANNOT_COUNT = "cannot_count"
    """The source is there, and cannot tell this here: a zero of it would mean nothing."""
    PARTIAL = "partial"
    """There is a value, and it lacks what the reason names."""
    TIMED_OUT = "timed_out"
    """No answer in time."""
    UNREACHABLE = "unreachable"
    """There is nothing to ask: no such file, nobody there, refused, ended."""
    MALFORMED = "malformed"
    """There was an answer, and it was not understood."""
    BUSY = "busy"
    """Who measures is still occupied with an earlier request, or leaves it to another."""
    FAILED = "failed"
    """A defect of the agent itself."""
    UNSPECIFIED = "unspecified"
    """The source of the reason did not say."""


#: Nothing is out of sight: what is missing does not exist, or did not happen.
ANSWERS = frozenset({Code.ABSENT, Code.IDLE, Code.NOT_APPLICABLE})


class Unseen(str):
    """Why a field is ``None``: the sentence that a person reads, and the ``code`` that decides.

    A string made of it (a slice, an f-string) is a plain one: give the new one a code as well.
    """

    __slots__ = ("code",)
    code: Code

    def __new__(cls, because: str, code: Code) -> Self:
        """The sentence with its code."""
        made = super().__new__(cls, because)
        made.code = code
        return made

    def reworded(self, because: str) -> Unseen:
        """Another sentence of the same code."""
        return Unseen(because, self.code)


def code_of(because: str) -> Code:
    """The code of a reason; ``UNSPECIFIED`` of a plain string."""
    return because.code if isinstance(because, Unseen) else Code.UNSPECIFIED


class NoData(Exception):
    """The source of a probe is absent: not broken, just not there.

    The message says why and what would make it visible; it is shown to the operator as it stands.
    Without a ``code`` it is that of ``because``.
    """

    def __init__(self, because: str, remedy: str = "", *, code: Code | None = None) -> None:
        super().__init__(because)
        self.because = because
        self.remedy = remedy
        self.code = code or code_of(because)


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram increment: observations per bucket (not cumulative, last one is +Inf) and their sum."""

    buckets: tuple[int, ...]
    sum: float

    @property
    def total(self) -> int:
        """How many observations there were."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What is known of a measured field before any measurement.

    ``kind``: ``gauge`` (a value now), ``increment`` (what was added since the last reading; exported
    as a counter), ``histogram`` (a :class:`Counts` since the last reading), ``flag`` (a boolean).
    ``by`` names the one label of a field whose value is a mapping ``{label value: number}``.
    ``buckets`` are a histogram's upper bounds, without +Inf.
    """

    name: str
    help: str
    kind: Kind
    by: str = ""
    buckets: tuple[float, ...] = ()
    stability: Stability | None = None
    """``None``: that of its Reading class."""

    @property
    def unit(self) -> str:
        """The Prometheus base unit in which the field's name ends, or ``""`` for a plain count."""
        tail = self.name.rpartition("_")[2]
        return tail if tail in UNITS else ""


def gauge(help: str, *, by: str = "", stability: Stability | None = None) -> Any:
    """Declare a field that holds a value of this moment; ``stability`` where it is not that of its class."""
    return _declare(help, "gauge", by=by, stability=stability)


def increment(help: str, *, by: str = "", stability: Stability | None = None) -> Any:
    """Declare a field that holds what was added since the previous reading (exported as a counter)."""
    return _declare(help, "increment", by=by, stability=stability)


def histogram(help: str, buckets: tuple[float, ...]) -> Any:
    """Declare a :class:`Counts` field with these upper bounds (+Inf is implied)."""
    return _declare(help, "histogram", buckets=buckets)


def flag(help: str) -> Any:
    """Declare a boolean field (exported as a gauge of 0 or 1)."""
    return _declare(help, "flag")


def _declare(
    help: str, kind: Kind, *, by: str = "", buckets: tuple[float, ...] = (), stability: Stability | None = None
) -> Any:
    return dataclasses.field(default=None, metadata={_SPEC: (help, kind, by, buckets, stability)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """One record of one probe.

    ``taken`` is :func:`time.monotonic` at the end of the measured interval, in seconds; ``seconds``
    is the interval's length.  ``target`` is the one label: the name of the configured target.
    ``unseen`` maps a field's name to the reason why it is ``None`` here.
    """

    probe: ClassVar[str] = ""
    #: Of each of its metrics that does not say otherwise; every class declares its own.
    stability: ClassVar[Stability]
    #: Whether there may be several targets, told apart by the ``target`` label.
    labelled: ClassVar[bool] = False
    #: Fields that are out of sight together with another, which is reported; or that the platform's counters report.
    told_elsewhere: ClassVar[frozenset[str]] = frozenset()

    taken: float
    seconds: float = 0.0
    target: str = ""
    unseen: Mapping[str, Unseen] = dataclasses.field(default_factory=lambda: _NOTHING)

    @property
    def urgent(self) -> bool:
        """Whether it shows by itself what is over before the next one: it is judged at once, in quiet times too (:mod:`agent.calm`)."""
        return False

    @property
    def blind_spots(self) -> Mapping[str, Unseen]:
        """What of ``unseen`` an operator could wish to see."""
        blind = {name: reason for name, reason in self.unseen.items() if reason.code not in ANSWERS}
        return {name: reason for name, reason in blind.items() if name not in self.told_elsewhere}


R = TypeVar("R", bound=Reading)
R_co = TypeVar("R_co", bound=Reading, covariant=True)


class Probe(Protocol[R_co]):
    """What the schedule runs: measure once, when told, and return a Reading.

    ``read`` raises :class:`NoData` when its source is absent; any other exception is a defect that
    the schedule catches, counts and shows.  It must not block the event loop.
    """

    @property
    def name(self) -> str:
        """The probe's name, as it is in metric names and in the configuration."""
        ...

    @property
    def target(self) -> str:
        """The name of the configured target, ``""`` for a probe that has just one."""
        ...

    @property
    def reading_type(self) -> type[R_co]:
        """The Reading class that :meth:`read` returns."""
        ...

    async def read(self) -> R_co:
        """Measure once."""
        ...

    async def aclose(self) -> None:
        """Give back every resource; called once, also after a failure."""
        ...


@runtime_checkable
class Impatient(Protocol):
    """A probe that at times wants its next slot before its time, such as while what it asks is down."""

    @property
    def sooner(self) -> float | None:
        """Seconds after which, where that is before the slot that is due; ``None``: when it is due."""
        ...


@runtime_checkable
class Timing(Protocol):
    """A probe whose reading is how long something took: what others of this process do meanwhile would be in it."""

    @property
    def alone(self) -> bool:
        """Whether it wants the event loop, and the CPU, to itself."""
        ...


def specs(reading_type: type[Reading]) -> tuple[FieldSpec, ...]:
    """Every measured field of a Reading class, in the order of its definition."""
    fields = (item for item in dataclasses.fields(reading_type) if _SPEC in item.metadata)
    return tuple(FieldSpec(item.name, *item.metadata[_SPEC]) for item in fields)


def metric_name(reading_type: type[Reading], spec: FieldSpec) -> str:
    """The Prometheus name of a field: ``stallscope_<probe>_<field>``, counters with ``_total``."""
    base = f"stallscope_{reading_type.probe}_{spec.name}"
    return f"{base}_total" if spec.kind == "increment" else base
