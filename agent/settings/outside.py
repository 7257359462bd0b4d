"""What the settings point at outside of themselves and that is not to be had here.

No fault: where the settings are checked may not be where the agent runs, and the agent runs without it and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from agent.settings.push import NO_POD_UID
from agent.settings.schema import Config
from probes.postgres.dsn import parse as parse_dsn
from probes.store.failures import LinkFailed
from probes.store.place import secret_from


def remarks(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each address, token or variable that cannot be had or used; none holds a part of a secret."""
    for name, place in config.postgres.targets.items():
        yield from _remark(f"postgres.targets.{name} = {place}", secret_from(place, environ), parse_dsn)
    if config.redis.targets:
        yield from _of_redis(config, environ)
    if config.otlp.enabled:
        yield from _of_otlp(environ)
    if config.alerts.kubernetes_events and not environ.get("POD_UID"):
        yield f"alerts.kubernetes_events: {NO_POD_UID} (here)"
    webhook = config.webhook
    wanted = {"url": webhook.url, "token": webhook.token, "secret": webhook.secret, **webhook.headers}
    yield from _unset({f"webhook.{name}": place for name, place in wanted.items()}, environ)
    yield from _unset({"alertmanager.token": config.alertmanager.token}, environ)


def _of_otlp(environ: Mapping[str, str]) -> Iterator[str]:
    from importlib.util import find_spec  # noqa: PLC0415 - who sends nothing does not pay its memory

    from agent.settings import otel_environ  # noqa: PLC0415 - same

    if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
        yield "otlp.enabled: needs the extra otlp: pip install 'stallscope[otlp]' (here)"
    yield from (f"otlp.enabled: {fault} (here)" for fault in otel_environ.read(environ).faults)


def _unset(places: Mapping[str, str], environ: Mapping[str, str]) -> Iterator[str]:
    for key, place in places.items():
        if place:
            yield from _remark(f"{key} = {place}", secret_from(place, environ), str)


def _of_redis(config: Config, environ: Mapping[str, str]) -> Iterator[str]:
    from probes.redis.address import address_from, parse  # noqa: PLC0415 - who watches no Redis does not pay its memory

    for name, place in config.redis.targets.items():
        address = address_from(place, config.redis.passwords.get(name, ""), environ)
        yield from _remark(f"redis.targets.{name} = {place}", address, parse)


def _remark(where: str, read: Callable[[], str], parse: Callable[[str], object]) -> Iterator[str]:
    try:
        parse(read())
    except LinkFailed as failed:
        yield f"{where}: {failed}; {failed.remedy}"
    except OSError as error:
        yield f"{where}: {error.strerror} (here)"
    except ValueError:
        yield f"{where}: empty or not set (here)"
