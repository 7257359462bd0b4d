"""Fetch the report of a running agent: ``stallscope report URL``."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from probes.labels import printable

TIMEOUT_SECONDS = 10.0
MOST_BYTES = 4 * 2**20
MOST_DETAIL = 200
MOST_LOGIN_BYTES = 8192
#: Where ``run`` listens unless it is told otherwise.
LOCAL = "127.0.0.1:9768"
#: Pages of the agent: whoever copies the address of one of them means the agent.
_PAGES = ("/health", "/report.txt", "/metrics", "/livez", "/readyz", "/timeline")
#: What makes an answer a report: the contract's keys and their JSON types.
_KEYS: dict[str, type] = {
    "status": str, "verdict": str, "findings": list, "ruled_out": list, "unknown": list, "cannot_see": list,
    "breakdown": dict, "platform": dict, "agent": dict,
}  # fmt: skip


class Unreachable(Exception):
    """There is no report to be had at that address; the message says why."""


class Pass(NamedTuple):
    """What is shown to an agent that is not open to everybody."""

    authorization: str = ""
    #: Who may vouch for it; ``None``: whom the system trusts.
    context: ssl.SSLContext | None = None


NO_PASS = Pass()


def pass_for(login_file: Path | None, ca_file: Path | None) -> Pass:
    """The login in a file (a bearer token, or USER:PASSWORD), and the authorities of another.  Raises Unreachable."""
    authorization, context = "", None
    try:
        if login_file is not None:
            with login_file.open("rb") as file:
                login = file.read(MOST_LOGIN_BYTES).decode("latin-1").strip()
            if not login or not login.isprintable():
                raise Unreachable(f"--login-file {login_file}: must hold one line, a token or USER:PASSWORD")
            basic = base64.b64encode(login.encode("latin-1")).decode()
            authorization = f"Basic {basic}" if ":" in login else f"Bearer {login}"
        if ca_file is not None:
            from probes.tls import verifying  # noqa: PLC0415 - brings asyncio

            context = verifying(str(ca_file))
    except ssl.SSLError:
        raise Unreachable(f"--ca-file {ca_file}: holds no certificate in PEM form") from None
    except OSError as error:
        raise Unreachable(f"{ca_file if authorization else login_file or ca_file}: {error.strerror}") from None
    return Pass(authorization, context)


def local_agent(environ: Mapping[str, str]) -> str:
    """The address of the agent of this machine, the first where it has several."""
    return environ.get("STALLSCOPE_HTTP__LISTEN", "").partition(",")[0].strip() or LOCAL


def get_report(url: str, shown: Pass = NO_PASS) -> dict[str, Any]:
    """The ``/health`` report of the agent at this address, which may be that of one of its pages.  Raises Unreachable."""
    url = _page(url, "health")
    try:
        body = _get(url, shown)
        report = json.loads(body)
    except OSError as error:
        raise Unreachable(f"{url}: {getattr(error, 'reason', error)}") from None
    except http.client.HTTPException as error:
        raise Unreachable(f"{url}: not an HTTP answer ({type(error).__name__})") from None
    except (ValueError, RecursionError):
        raise Unreachable(f"{url}: the answer is not a report") from None
    whole = isinstance(report, dict) and all(isinstance(report.get(key), kind) for key, kind in _KEYS.items())
    if not whole or not isinstance(report.setdefault("conclusive", _concludes(report)), bool):
        raise Unreachable(f"{url}: the answer is not a report of stallscope")
    assert isinstance(report, dict)
    return report


def get_timeline(url: str, shown: Pass = NO_PASS) -> dict[str, Any]:
    """The last hour of the same agent; empty where it is older than that page.  Raises Unreachable."""
    address = _page(url, "timeline")
    try:
        timeline = json.loads(_get(address, shown))
    except (Unreachable, ValueError, RecursionError):
        return {}
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{address}: {getattr(error, 'reason', error)}") from None
    return timeline if isinstance(timeline, dict) else {}


def _page(url: str, name: str) -> str:
    """The address of this page of the agent at ``url``, which may be that of another of its pages."""
    if not url.startswith(("http://", "https://")):
        url = f"http://{url}"
    url = url.rstrip("/")
    for page in _PAGES:
        url = url.removesuffix(page)
    return f"{url}/{name}"


def _concludes(report: dict[str, Any]) -> bool:
    """What an agent older than the key ``conclusive`` would have said: it warns without a finding when it cannot tell."""
    return bool(report["findings"] or (report["status"] == "pass" and report["breakdown"].get("cpu")))


def _get(url: str, shown: Pass) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/health+json"})
    if shown.authorization:
        request.add_unredirected_header("Authorization", shown.authorization)  # it is this address's alone
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=shown.context) as answer:
            return bytes(answer.read(MOST_BYTES))
    except urllib.error.HTTPError as error:
        # "fail" is an answer, and a valuable one; its status is configurable, a proxy may change its type.
        if error.code == 503 or error.headers.get_content_type() == "application/health+json":
            return error.read(MOST_BYTES)
        hint = "; name a file with --login-file" if error.code == 401 and not shown.authorization else ""
        raise Unreachable(f"{url}: {error.code} {error.reason}{_detail(error.read(MOST_BYTES))}{hint}") from None


def _detail(body: bytes) -> str:
    """What the agent says of a request that it refuses, "" for anybody else's words."""
    try:
        detail = json.loads(body)["detail"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return ""
    return f": {printable(detail, MOST_DETAIL)}" if isinstance(detail, str) else ""
