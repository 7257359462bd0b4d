"""`stallscope fleet`: the command line, and what a bad engine cannot do."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent.commands import cli, exits
from agent.commands.fleet import command, engine
from agent.commands.fleet.engine import Engine, NoAnswer
from agent.commands.fleet.text import render
from tests.serving import running
from tests.unit.agent.commands.fleet_answers import Answers, recorded, replay
from tests.unit.agent.commands.test_fleet import healthy, judged, vector

Output = pytest.CaptureFixture[str]


# ---- an engine that cannot be trusted


def test_where_the_engine_is() -> None:
    for given_, wanted in (
        ("prom:9090", "http://prom:9090"),
        ("https://mimir/prometheus/", "https://mimir/prometheus"),
        ("http://prom:9090/graph?g0.expr=up", "http://prom:9090"),
        ("http://[::1]:9090/api/v1/query", "http://[::1]:9090"),
        ("https://monitoring.googleapis.com/v1/projects/p/location/global/prometheus", None),
    ):
        assert engine.address(given_) == (wanted or given_)


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://a", "http://a:b@c", "http://a:99999", "http://a\r\nX: y", "http://ä", "http://[x"]
)
def test_what_is_no_address_is_refused_without_its_password(url: str, capsys: Output) -> None:
    assert cli.main(["fleet", url]) == exits.USAGE
    told = capsys.readouterr().err
    assert "PROMETHEUS-URL" in told
    assert "a:b" not in told


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def served(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server with this answer to every POST, and the Authorization headers that came."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            came.append(self.headers.get("Authorization", ""))
            try:
                answer(self)
            except OSError:
                self.close_connection = True

        do_GET = do_POST  # noqa: N815 - the base class's name

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}", came


def says(body: bytes, status: int = 200, *headers: tuple[str, str]) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(4 * engine.MOST_BYTES // 2**16):
        handler.wfile.write(b"[" * 2**16)


NEVER = threading.Event()


def dripping(handler: BaseHTTPRequestHandler) -> None:
    """A header now and then: no read of it ever takes long."""
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
    for number in range(200):
        handler.wfile.write(b"X-%d: y\r\n" % number)
        handler.wfile.flush()
        NEVER.wait(0.05)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (says(b"not json"), "not as the query API does"),
        (says(b'"' + b"[" * 100_000), "not as the query API does"),
        (says(b"[" * 100_000), "not as the query API does"),
        (says(b'{"status":"success"}'), "not one of Prometheus' query API"),
        (says(b'{"status":"success","data":{"result":[{"metric":{},"value":[1,"x"]}]}}'), "not one of"),
        (says(b'{"status":"success","data":{"result":[{"metric":[],"value":[1,"1"]}]}}'), "not one of"),
        (says(b'{"status":"error","error":"bad\\u001b[2J"}', 400), "answered 400: bad?[2J"),
        (says(b"{}", 401), "--bearer-token-file"),
        (says(b"", 404), "path prefix"),
        (says(b"", 302, ("Location", "http://127.0.0.1:1/")), "redirects are not followed"),
        (endless, "larger than 8 MiB"),
        (lambda handler: handler.wfile.write(b"\0\n\n"), "not an HTTP answer"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_told_with_what_was_asked(answer: Answer, words: str) -> None:
    with served(answer) as (url, _), pytest.raises(NoAnswer) as told:
        Engine(url).now("up")
    assert f"{url}/api/v1/query: up: " in str(told.value)
    assert words in str(told.value)
    assert len(str(told.value)) < 600


def test_an_engine_that_drips_is_left_after_its_time() -> None:
    began = time.monotonic()
    with served(dripping) as (url, _), pytest.raises(NoAnswer, match="no whole answer within"):
        Engine(url, question_seconds=0.5).now("up")
    assert time.monotonic() - began < 30


def test_all_questions_together_have_their_time() -> None:
    now = [0.0]
    slow = Engine("http://engine", over=replay({}), clock=lambda: now[0])
    slow.now("up")
    now[0] = engine.ALL_SECONDS
    with pytest.raises(NoAnswer, match="not asked"):
        slow.now("up")


def test_nobody_is_there() -> None:
    assert cli.main(["fleet", "http://127.0.0.1:1"]) == exits.UNAVAILABLE


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e300", "-1e300"])
def test_a_number_that_counts_nothing_is_left_out(value: str) -> None:
    body = json.dumps(vector(({}, 1.0))).replace('"1.0"', f'"{value}"').encode()
    found = Engine("http://engine", over=lambda *_: (200, body)).now("up")
    assert found == []


@pytest.mark.parametrize("time_", [1e14, -1.0, 10.0])
def test_an_engine_that_does_not_know_the_time_is_no_engine(time_: float) -> None:
    with pytest.raises(NoAnswer, match="what time it is"):
        judged({"query vector(time())": vector(({}, time_))})


# ---- the command


def test_the_token_is_sent_to_the_engine_and_told_to_nobody(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "token").write_text("s3cret-token\n")
    with served(says(b"{}", 403)) as (url, came):
        code = cli.main(
            ["fleet", url, "--bearer-token-file", str(tmp_path / "token"), "--header", "X-Scope-OrgID: shop"]
        )
    told = capsys.readouterr()
    assert (code, came) == (exits.UNAVAILABLE, ["Bearer s3cret-token"])
    assert "s3cret" not in told.out + told.err


def test_all_faults_of_the_command_line_are_told_at_once(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "token").write_text("two words\n")
    words = ["--match", "up", "--by", "rule", "--header", "nonsense", "--bearer-token-file", str(tmp_path / "token")]
    assert cli.main(["fleet", "ftp://x", *words]) == exits.USAGE
    told = capsys.readouterr().err
    for flag in ("PROMETHEUS-URL", "--match", "--by", "--header", "--bearer-token-file"):
        assert f"stallscope: {flag}" in told
    assert "two words" not in told


@pytest.mark.parametrize("words", [("--since", "1m"), ("--since", "8d"), ("--since", "soon"), ()])
def test_wrong_usage_is_exit_64(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["fleet", *(("http://x", *words) if words else ())])
    assert end.value.code == exits.USAGE


@pytest.mark.parametrize(
    ("answers", "code"),
    [(healthy(), exits.HEALTHY), (healthy(unknown=3), exits.CANNOT_TELL), (recorded(), exits.FINDINGS)],
)
def test_the_exit_code_is_the_verdict(
    answers: Answers, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(command, "Engine", lambda url, headers: Engine(url, headers, over=replay(answers)))
    assert cli.main(["fleet", "http://engine"]) == code
    assert "asked http://engine" in capsys.readouterr().out
    assert cli.main(["fleet", "http://engine", "--json", "--since", "3600"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told["engine"]["questions"] > 5
    assert {"verdict", "conclusive", "findings", "cannot_see", "groups"} <= told.keys()


def test_text_of_a_foreign_label_steers_no_terminal() -> None:
    answers = json.loads(json.dumps(recorded()).replace('"12"', '"12\\u001b[2J\\n"'))
    assert "\x1b" not in render(judged(answers), "asked")


def test_an_exchange_reads_no_more_than_it_may() -> None:
    with served(says(b"x" * 1000)) as (url, _):
        request = urllib.request.Request(url, b"")
        assert engine.exchange(request, 10.0, 10) == (200, b"x" * 10)
