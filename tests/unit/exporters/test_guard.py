"""Whom the pages answer: whoever asks for a name that nobody else can point here, and no page of another site."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.settings.load import ConfigError, load
from agent.settings.schema import Http
from exporters import sparing
from exporters.guard import Hosts, own_names
from exporters.pages import ELSEWHERE, TABLE
from tests.unit.exporters.app import App
from tests.unit.golden import fixed

#: What those send who should be answered, and who they are.
OURS = {
    "": "HTTP/1.0 without the header",
    "127.0.0.1:9768": "curl",
    "10.8.0.17:9768": "the kubelet and Prometheus, by pod IP",
    "0.0.0.0:9768": "Managed Prometheus on Cloud Run",
    "[::1]:9768": "IPv6",
    "[fe80::1%eth0]": "IPv6 with a zone",
    "[::ffff:10.0.0.1]:1": "IPv4 in IPv6",
    "localhost": "a browser by port-forward",
    "LocalHost.:80": "the same, written absolutely",
    "shop.localhost:8080": "RFC 6761",
    "stallscope:9768": "a service of Compose",
    "my_app-1": "the same",
    "stallscope.shop.svc:9768": "a Service of Kubernetes",
    "stallscope.shop.svc.cluster.local.": "the same",
    "10-8-0-17.shop.pod.cluster.local:9768": "a pod of Kubernetes",
    "vm-1.europe-west1-b.c.project.internal": "Google Cloud",
    "ip-10-0-0-1.ec2.internal:9768": "Amazon",
    "host.docker.internal": "Docker",
}
FOREIGN = [
    "evil.example", "evil.example:9768", "127.0.0.1.evil.example", "localhost.evil.example", "svc.evil.example",
    "xn--bcher-kva.example", "internal.example", "notlocalhost.com", "evil.svcx", "user@127.0.0.1", "127.0.0.1@evil.example",
    "a b.example", "http://127.0.0.1", "[::1", "[evil.example]", "[]", "evil.example:80:80", "evil.example:port", "/", "a.b" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("host", OURS, ids=OURS.values())
def test_a_name_that_nobody_outside_can_point_here_is_answered(host: str) -> None:
    assert Hosts(Http().allowed_hosts).allow(host)


@pytest.mark.parametrize("host", FOREIGN, ids=lambda host: host[:30])
def test_a_name_that_its_owner_may_point_anywhere_is_not(host: str) -> None:
    assert not Hosts(Http().allowed_hosts).allow(host)


@pytest.mark.parametrize("path", [*TABLE, "/openapi.json", "/nothing", "/requests-in-flight"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_the_answer_to_a_foreign_name_tells_nothing_but_the_setting(method: str, path: str) -> None:
    app = App(fixed.state())
    answer = app.call(method, path, host="evil.example:9768")
    assert (answer.status, app.loaded) == (421, 0)
    told = json.loads(answer.body)["detail"]
    assert "evil.example:9768" in told
    assert "http.allowed_hosts" in told


@pytest.mark.parametrize(
    ("allowed", "host", "answered"),
    [
        (("stallscope.example.com",), "Stallscope.Example.com:443", True),
        (("stallscope.example.com",), "a.stallscope.example.com", False),
        (("*.example.com",), "a.b.example.com", True),
        (("*.example.com",), "example.com", False),
        (("*.example.com",), "evilexample.com", False),
        (("*",), "anything.example", True),
        (("*",), "user@anything.example", False),
        ((), "stallscope.shop.svc", False),
    ],
)
def test_further_names_are_allowed_by_the_settings(allowed: tuple[str, ...], host: str, answered: bool) -> None:
    assert Hosts(allowed).allow(host) is answered


def test_the_names_of_this_host_are_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "web1")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hosts").write_text(
        "127.0.0.1 localhost\n\n127.0.1.1 web1.example.com web1 # us\n8.8.8.8 evil.example\n::1\n"
    )
    assert own_names(tmp_path) == {"web1", "web1.example.com"}
    assert Hosts((), own_names(tmp_path)).allow("web1.example.com:9768")
    assert own_names(tmp_path / "nowhere") == {"web1"}


@pytest.mark.parametrize("wrong", ["http://a.example", "a.example:80", ".", "a.*", "*a", ".example", "a b"])
def test_a_setting_that_is_no_host_name_is_a_fault(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"http\.allowed_hosts.*host name"):
        load(None, {}, [("http.allowed_hosts", wrong)])


def test_who_asks_for_another_host_is_reported_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sparing, "BURST_SECONDS", -1.0)  # in the next turn of the loop
    app = App(fixed.state())
    for _ in range(3):
        app.call("GET", "/metrics", host="prometheus.example.com\x1b[2J" + "x" * 10_000)
    (line,) = caplog.messages[:1]
    assert "http.allowed_hosts" in line
    assert "\x1b" not in line
    assert len(line) < 300


# ---- who may change something

BODY = b'{"in_flight": 3}'
CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content_type": "application/json"},
        {"content_type": "application/x-www-form-urlencoded", "user_agent": "curl/8.5"},
        {"content_type": "text/plain;charset=UTF-8", "user_agent": "node", "sec_fetch_mode": "cors"},
        {"content_type": "application/json", "user_agent": CHROME, "origin": "http://127.0.0.1:9768", "sec_fetch_site": "same-origin"},
        {"content_type": "application/json", "user_agent": CHROME, "sec_fetch_site": "none"},
    ],
    ids=["bare", "JSON", "curl -d", "fetch of Node", "our own page", "typed into a browser"],
)  # fmt: skip
def test_the_app_may_tell_with_any_client(headers: dict[str, str]) -> None:
    app = App(fixed.state())
    assert app.post(BODY, host="127.0.0.1:9768", **headers).status == 204
    assert app.pushed == [("pushed", 3)]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"origin": "http://127.0.0.1:9768.evil.example"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"content_type": "application/json", "origin": "https://evil.example"},
        {"content_type": "text/plain;charset=UTF-8", "user_agent": CHROME},
        {"content_type": "multipart/form-data; boundary=x", "user_agent": CHROME},
        {"content_type": " Application/X-WWW-Form-Urlencoded ", "user_agent": CHROME},
        {"user_agent": CHROME},
    ],
    ids=lambda headers: " ".join(f"{name}={text}"[:40] for name, text in headers.items()),
)
def test_a_page_of_another_site_may_not(headers: dict[str, str]) -> None:
    app = App(fixed.state())
    answer = app.post(BODY, host="127.0.0.1:9768", **headers)
    assert (answer.status, app.pushed, app.loaded) == (403, [], 0)
    assert any(word in json.loads(answer.body)["detail"] for word in ("Origin", "Content-Type"))


def test_every_path_may_be_opened_and_no_other() -> None:
    every = (*TABLE, *ELSEWHERE)
    assert Http(open_paths=every).open_paths == every
    with pytest.raises(ValueError, match="open_paths"):
        Http(open_paths=("/nothing",))
