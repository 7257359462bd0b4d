"""One frozen tree of settings from file, environment and flags; every fault reported at once.

The file is TOML: Python reads it without a dependency, it has comments and real types, and unlike
YAML it never turns ``no`` into a boolean.  The environment overrides the file, flags override both:
``[suspension] budget_ratio`` is ``STALLSCOPE_SUSPENSION__BUDGET_RATIO`` and
``--set suspension.budget_ratio=0.001``.  An unknown key is an error everywhere, because a misspelt
setting that silently does nothing is found only when it is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from agent import timeline
from agent.settings.schema import Address, Config, parse_addresses
from agent.settings.settings_file import read_settings_file
from probes import planned
from probes.gcp.cloud_logging import LIBRARY_BYTES
from probes.registration import Context, cpu_ratio
from probes.section import Faults
from probes.setting import Fault, Place

__all__ = ["Address", "Config", "ConfigError", "load", "parse_addresses"]

PREFIX = "STALLSCOPE_"
#: Kubernetes gives every pod variables like these for each Service; one named stallscope is not a setting.
_OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP).*)?)$")
#: What the hooks in the app's processes go by; often the whole pod or machine has the same environment.
_OF_HOOKS = frozenset({"STALLSCOPE_HOOK", "STALLSCOPE_HOOK_NAME", "STALLSCOPE_HOOK_LOGS"})
#: Of a value that is not accepted, so many characters are shown.
_MOST_SHOWN = 100
#: Where a DSN or a password could stand by mistake.
_SECRET = ("postgres.targets", "redis.targets", "redis.passwords", "webhook.", "alertmanager.token")
#: What OTLP takes: its messages' library, and what waits in an outage (measured: docs/push.md).
OTLP_BYTES = 8 * 2**20
#: Agent and child without any history.
BARE_BYTES = 62 * 2**20


class ConfigError(Exception):
    """The settings are unusable.  ``faults`` holds one sentence per fault, all of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def predicted_cpu_ratio(config: Config) -> float:
    """What these settings cost, share of one core, as the probes say that they ask for: with nothing that grows, such as connections."""
    return cpu_ratio(planned(Context(config.sections)))


def anybody_told(config: Config) -> bool:
    """Whether findings or metrics are sent to anybody without being asked for (:mod:`exporters.push`)."""
    return (
        config.otlp.enabled or bool(config.webhook.url or config.alertmanager.urls) or config.alerts.kubernetes_events
    )


def history_bytes(config: Config) -> int:
    """Upper bound of the memory of the history and of the last hour of reports."""
    plans = planned(Context(config.sections))
    return timeline.MOST_BYTES + sum(int(config.history.seconds / plan.every) * plan.history_bytes for plan in plans)


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Sequence[tuple[str, str]] = (),
    *,
    known_rules: Sequence[str] = (),
) -> Config:
    """Read the settings.

    ``flags`` are (dotted key, text) pairs.  Raises ConfigError with every fault of every source.
    """
    faults: list[str] = []
    tree: dict[str, Any] = {}
    source: dict[str, str] = {}
    if path is not None:
        try:
            tree = read_settings_file(path)
        except ValueError as error:
            faults.append(f"file {path}: {error}")
        source = dict.fromkeys(_dotted(tree), f"file {path}")
    given = [
        (name.removeprefix(PREFIX).lower().replace("__", "."), text, f"environment {name}")
        for name, text in sorted((environ or {}).items())
        if name.startswith(PREFIX) and name not in _OF_HOOKS and not _OF_KUBERNETES.search(name)
    ] + [(key, text, f"flag for {key}") for key, text in flags]
    for key, text, where in given:
        section, dot, name = key.partition(".")
        if not dot or not name:
            faults.append(f"{where}: no such setting; a setting is SECTION.KEY, like http.listen")
            continue
        node = tree.setdefault(section, {})
        if isinstance(node, dict):
            node[name] = _from_text(section, name, text)
            source[key] = where
    try:
        config = Config.model_validate(tree)
    except Faults as error:
        faults.extend(_sentence(fault, source) for fault in error.found)
        raise ConfigError(faults) from None
    faults.extend(_impossible(config, known_rules))
    if faults:
        raise ConfigError(faults)
    return config


def _dotted(tree: Mapping[str, Any]) -> list[str]:
    return [f"{section}.{key}" for section, node in tree.items() if isinstance(node, Mapping) for key in node]


def _from_text(section: str, key: str, text: str) -> Any:
    """Lists are comma-separated in the environment and in flags, tables too, as name=value; the rest goes by its type."""
    model = Config.model_fields.get(section)
    fields = getattr(model.annotation, "model_fields", {}) if model is not None else {}
    field = fields.get(key)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if field is not None and "tuple" in str(field.annotation):
        return parts
    if field is not None and "dict" in str(field.annotation):
        return {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in parts)}
    return text


def _sentence(fault: Fault, source: Mapping[str, str]) -> str:
    path = ".".join(str(part) for part in fault.place)
    key = ".".join(str(part) for part in fault.place[:2])
    where = source.get(key) or next((of for name, of in source.items() if name.startswith(f"{key}.")), "")
    suffix = f" ({where})" if where else ""
    if fault.unknown:
        return f"{path[:_MOST_SHOWN]}{suffix}: no such setting{_near(fault.place)}"
    given = "(not shown)" if path.startswith(_SECRET) else _shown(repr(fault.given))
    if len(given) > _MOST_SHOWN:
        given = f"{given[:_MOST_SHOWN]}... ({len(given)} characters)"
    return f"{path[:_MOST_SHOWN]} = {given}{suffix}: {fault.message[0].lower()}{fault.message[1:]}"


def _shown(given: str) -> str:
    """Never a password: of an address nothing that may stand before its last @.  (Of DSN places nothing at all is shown: a DSN may stand there.)"""
    head, at, host = given.rpartition("@")
    if not at:
        return given
    scheme, slashes, _ = head.partition("//")
    return f"{scheme}{slashes}...@{host}" if slashes else f"...@{host}"


def _near(place: Place) -> str:
    import difflib  # noqa: PLC0415 - only on the way to an error

    known: dict[str, Any] = dict(Config.model_fields)
    if len(place) > 1 and place[0] in known:
        known = getattr(known[str(place[0])].annotation, "model_fields", {})
    close = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(sorted(known))}"


def _impossible(config: Config, known_rules: Sequence[str]) -> list[str]:
    """Values that are each allowed and together are not."""
    faults = []
    if list(config.suspension.spin_seconds) != sorted(set(config.suspension.spin_seconds)):
        faults.append("suspension.spin_seconds: must grow from one length to the next")
    if not all(0.002 <= length <= 1 for length in config.suspension.spin_seconds):
        faults.append("suspension.spin_seconds: each length must be 0.002 to 1 second")
    if any(gap < 0 or 0 < gap < 1 for gap in config.suspension.spin_every_seconds or ()):
        faults.append("suspension.spin_every_seconds: each must be 0 (never) or at least 1 second")
    if (cost := predicted_cpu_ratio(config)) > config.budget.cpu_ratio:
        faults.append(
            f"budget.cpu_ratio = {config.budget.cpu_ratio}: these settings need about {ceil(1e4 * cost) / 1e4:.4f} of a core; "
            "raise it, or lengthen heartbeat_seconds and every_seconds"
        )
    library = LIBRARY_BYTES * (config.log_delivery.wanted or bool(config.cloud_logging.findings_log))
    size, room = (
        history_bytes(config),
        config.budget.memory_bytes - BARE_BYTES - library - OTLP_BYTES * config.otlp.enabled,
    )
    if library and size > room:
        faults.append(
            f"budget.memory_bytes = {config.budget.memory_bytes}: log_delivery and cloud_logging.findings_log load "
            f"google-cloud-logging, about {library >> 20} MiB; set at least {BARE_BYTES + library + size}"
        )
    elif size > room:
        faults.append(
            f"history.seconds = {config.history.seconds:g}: the history could take {size >> 20} MiB, "
            f"budget.memory_bytes leaves {room >> 20} MiB for it"
        )
    faults.extend(_impossible_stores(config))
    faults.extend(_impossible_push(config))
    faults.extend(
        f"logs.metrics_urls: the name {name!r} stands in logs.files too"
        for name in sorted(config.logs.files.keys() & config.logs.metrics_urls.keys())
    )
    delivery = config.log_delivery
    if delivery.wanted and not delivery.leader:
        faults.append(
            "log_delivery.leader: must say which instance asks, since the quota is the project's: always where there is only "
            "one, else host:-0, env:VARIABLE or file:/PATH; never on the others"
        )
    if delivery.filter and not delivery.log_names:
        faults.append("log_delivery.filter: is of no use without log_delivery.log_names")
    faults.extend(
        f"rules.disabled: no such rule {rule!r}; known: {', '.join(known_rules)}"
        for rule in config.rules.disabled
        if known_rules and rule not in known_rules
    )
    return faults


def _impossible_push(config: Config) -> Iterator[str]:
    """The same of those who are told."""
    webhook = config.webhook
    if webhook.body == "pagerduty" and webhook.url and not webhook.secret:
        yield "webhook.secret: must say where the routing key stands that the body pagerduty sends"
    if not webhook.url and webhook != type(webhook)():
        yield "webhook.url: must be set for the rest of [webhook] to be of use"
    if not config.alertmanager.urls and config.alertmanager != type(config.alertmanager)():
        yield "alertmanager.urls: must be set for the rest of [alertmanager] to be of use"


def _impossible_stores(config: Config) -> Iterator[str]:
    """The same of the servers that are asked."""
    for name, section in (("postgres", config.postgres), ("redis", config.redis)):
        if section.targets and section.timeout_seconds >= section.every_seconds:
            yield (
                f"{name}.timeout_seconds = {section.timeout_seconds:g}: must be below every_seconds = "
                f"{section.every_seconds:g}, so that one slot ends before the next"
            )
    yield from (
        f"redis.targets: the name {name!r} stands in postgres.targets too"
        for name in sorted(config.postgres.targets.keys() & config.redis.targets.keys())
    )
    yield from (
        f"redis.passwords: {name!r} is no name of redis.targets"
        for name in sorted(config.redis.passwords.keys() - config.redis.targets.keys())
    )
