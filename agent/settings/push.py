"""Who is told of findings without asking: the settings of :mod:`exporters.push`.  At their defaults nobody is, and nothing is loaded."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from probes.reading import Stability
from probes.section import AfterValidator, Field, Section, http_url, named
from probes.store.place import is_place

_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]{0,63}"
#: A header's name, as RFC 9110 has a token.
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_NO_HEADER = "is no header that can be set"
#: Who sends sets these; another value would end the request in the wrong place.
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "content-encoding", "connection", "transfer-encoding"}
)
#: Made of the finding and of where the agent runs.
OWN_LABELS = ("alertname", "rule", "severity", "service", "revision", "instance", "environment")
#: What Events lack then.
NO_POD_UID = "POD_UID is not set; `kubectl describe pod` asks for Events by the pod's uid and shows none without it"


def _place(text: str) -> str:
    if text and not is_place(text):
        raise ValueError("must be env:VARIABLE or file:PATH, where the value stands: the settings are shown")
    return text


def _base(text: str) -> str:
    if "?" in text or "#" in text:
        raise ValueError("must end in a path: /api/v2/alerts is added to it")
    return http_url(text).rstrip("/")


def _page(text: str) -> str:
    return http_url(text) if text else text


def _headers(headers: dict[str, str]) -> dict[str, str]:
    for name, place in named(headers, _HEADER, _NO_HEADER).items():
        if name.lower() in _OWN_HEADERS:
            raise ValueError(f"{name!r} {_NO_HEADER}")
        if not is_place(place):
            raise ValueError(
                f"{name}: must be env:VARIABLE or file:PATH, where the value stands: the settings are shown"
            )
    return headers


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for name in labels:
        if not re.fullmatch(_LABEL, name) or name.startswith("__") or name in OWN_LABELS:
            own = ", ".join(OWN_LABELS)
            raise ValueError(f"{name[:64]!r} must be a letter, then letters, digits and _, and none of {own}")
    return labels


def _body(text: str) -> str:
    from agent.settings.body import Body  # noqa: PLC0415 - only where a body is set

    Body(text)
    return text


class Alerts(Section):
    """Which findings are told by webhook, Alertmanager and Kubernetes Events, and how."""

    stability: ClassVar[Stability] = "beta"

    severity: Literal["info", "warning", "critical"] = Field(
        "warning", description="The least severity of a finding that is told: info, warning or critical."
    )
    wait_seconds: float = Field(
        30.0,
        ge=0,
        le=600,
        description="How long a finding stands before it is told, so that its cause, if it is an effect, is known by then (Alertmanager's group_wait).",
    )
    page_url: Annotated[str, AfterValidator(_page)] = Field(
        "", description="Where people find the page of this agent, for the link in what is told; empty: no link."
    )
    timeout_seconds: float = Field(10.0, ge=0.5, le=60, description="Deadline of one request.")
    kubernetes_events: bool = Field(
        False,
        description="Whether each is made an Event of the agent's pod; the service account needs `create` on `events` of `events.k8s.io`, and the container POD_NAME and POD_UID by the downward API.",
    )


class Otlp(Section):
    """Metrics and findings to an OpenTelemetry collector; everything else is said by the OTEL_* variables."""

    stability: ClassVar[Stability] = "beta"

    enabled: bool = Field(False, description="Whether they are sent; needs the extra `otlp`.")


class Webhook(Section):
    """A POST for each finding, and one at its end."""

    stability: ClassVar[Stability] = "beta"

    url: Annotated[str, AfterValidator(_place)] = Field(
        "", description="env:VARIABLE or file:PATH, where the address stands, because it is often a secret; empty: off."
    )
    body: Annotated[str, AfterValidator(_body)] = Field(
        "json", description="json, slack, teams or pagerduty; or a JSON text of your own with $names in its strings."
    )
    token: Annotated[str, AfterValidator(_place)] = Field(
        "", description="env:VARIABLE or file:PATH of a token, sent as `Authorization: Bearer`."
    )
    secret: Annotated[str, AfterValidator(_place)] = Field(
        "",
        description="env:VARIABLE or file:PATH of what `$secret` of the body is, such as the routing key of PagerDuty.",
    )
    headers: Annotated[dict[str, str], AfterValidator(_headers)] = Field(
        {}, max_length=16, description="Further headers, as NAME=env:VARIABLE or NAME=file:PATH."
    )


class Alertmanager(Section):
    """Alerts to Alertmanagers (API v2), sent again while they last."""

    stability: ClassVar[Stability] = "beta"

    urls: tuple[Annotated[str, AfterValidator(_base)], ...] = Field(
        (), max_length=8, description="Addresses, without /api/v2/alerts; each of a cluster is told. Empty: off."
    )
    token: Annotated[str, AfterValidator(_place)] = Field(
        "", description="env:VARIABLE or file:PATH of a token, sent as `Authorization: Bearer`."
    )
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = Field(
        {}, max_length=16, description="Further labels of every alert, such as team=shop."
    )
    every_seconds: float = Field(
        60.0, ge=5, le=600, description="How often it is sent again; it ends by itself after four times that."
    )
