"""The settings, cadence and cost of the probe of configured Redis servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from probes.host.platform import trust_of
from probes.reading import Probe, Stability
from probes.redis.reading import RedisReading
from probes.registration import Context, Planned, Registration
from probes.section import AfterValidator, Field, Preset, Section, named
from probes.sockets.registration import app_is_answered
from probes.store.place import is_place

#: CPU of one slot (five round trips, INFO and SLOWLOG), and of opening a connection (measured; TLS costs more).
CPU_SECONDS = 5e-3
CONNECT_CPU_SECONDS = 6e-3
#: Upper bound of a reading (measured: 4700).
READING_BYTES = 6_000


def _targets(targets: dict[str, str]) -> dict[str, str]:
    from probes.redis.address import without_password  # noqa: PLC0415 - who watches no Redis does not pay its memory

    for name, place in named(targets).items():
        if not is_place(place):
            try:
                without_password(place)
            except ValueError as error:
                raise ValueError(
                    f"{name} must be redis://HOST[:PORT] without a password, env:VARIABLE or file:PATH: {error}"
                ) from None
    return targets


def _passwords(passwords: dict[str, str]) -> dict[str, str]:
    for name, place in named(passwords).items():
        if not is_place(place):
            raise ValueError(
                f"{name} must be env:VARIABLE or file:PATH, where the password is; never the password itself"
            )
    return passwords


class Redis(Section):
    """The Redis servers whose round trip is taken apart."""

    stability: ClassVar[Stability] = "beta"

    targets: Annotated[dict[str, str], AfterValidator(_targets)] = Field(
        {},
        max_length=16,
        description="Name to its URL, redis://, rediss:// or unix://, or to where that is: env:VARIABLE or file:PATH.",
    )
    passwords: Annotated[dict[str, str], AfterValidator(_passwords)] = Field(
        {},
        max_length=16,
        description="Name of a target to where its password is, unless its URL has it: env:VARIABLE or file:PATH.",
    )
    every_seconds: float = Field(10.0, ge=2, le=300, description="Time between two slots of one server.")
    timeout_seconds: float = Field(5.0, ge=0.5, le=30, description="Time-out of a slot.")
    server_view: bool = Field(True, description="Ask the server for INFO and SLOWLOG too.")
    connect_every_seconds: float = Field(
        60.0,
        ge=10,
        le=3600,
        description="Time between two new connections; longer where slots come further apart, as in quiet times.",
    )

    def for_doctor(self) -> Preset:
        """A slot must end before the next one."""
        return {"every_seconds": 2.0, "timeout_seconds": min(1.5, self.timeout_seconds)}


def probes(context: Context) -> Iterator[Planned]:
    """One for each server."""
    for target in context.settings(Redis).targets:
        yield _of_one(context, target)


def _of_one(context: Context, target: str) -> Planned:
    settings = context.settings(Redis)

    def make() -> Probe[RedisReading]:
        from probes.redis.address import address_from  # noqa: PLC0415 - who watches no Redis does not pay its memory
        from probes.redis.probe import RedisProbe  # noqa: PLC0415

        return RedisProbe(
            target, address_from(settings.targets[target], settings.passwords.get(target, ""), context.environ),
            server_view=settings.server_view, timeout=settings.timeout_seconds, connect_every=settings.connect_every_seconds,
            every=settings.every_seconds,
            believe_cpu=lambda: trust_of(context).get("thread_cpu_time") is True,
            app_is_answered=lambda since: app_is_answered(context, target, since), on_peer=context.found_database,
        )  # fmt: skip

    return Planned(
        make=make,
        every=settings.every_seconds,
        timeout=settings.timeout_seconds + 1,
        cpu_seconds=CPU_SECONDS + CONNECT_CPU_SECONDS * settings.every_seconds / settings.connect_every_seconds,
        history_bytes=READING_BYTES,
    )  # fmt: skip


REGISTRATION = Registration(probes, readings=(RedisReading,))
