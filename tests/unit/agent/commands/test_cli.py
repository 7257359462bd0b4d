"""The command line: help texts, exit codes, one line for each fault and never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import stallscope
from agent.commands import cli, exits
from agent.commands.doctor import too_short_for
from agent.commands.hooks import LOADED_BY, hook_path
from agent.commands.parser import SHELLS, duration
from agent.report import Report, to_json
from agent.rules import RULES
from agent.settings.load import load
from agent.settings.schema import Config
from stallscope import own_first
from tests.serving import running
from tests.unit.golden import fixed

ROOT = Path(__file__).resolve().parents[4]
COMMANDS = (
    "run",
    "exec",
    "doctor",
    "demo",
    "report",
    "fleet",
    "mcp",
    "check-config",
    "explain",
    "hooks",
    "completion",
    "bench",
)

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Help as on a terminal of 100 columns without colours; no settings from outside."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    for name in [name for name in os.environ if name.startswith("STALLSCOPE_")]:
        monkeypatch.delenv(name)


def ended(*arguments: str) -> int:
    """The exit code, whether returned or raised."""
    try:
        return cli.main(arguments)
    except SystemExit as end:
        return int(end.code or 0)


# ---- help and usage


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_of_each_command_is_the_golden_one(command: str, capsys: Output) -> None:
    assert ended(*filter(None, (command, "--help"))) == 0
    # Where argparse breaks a line changes from one Python to the next: the files are 3.11's.
    shape = str if sys.version_info[:2] == (3, 11) else str.split
    fixed.same_as_golden(f"help{command and '-'}{command}.txt", capsys.readouterr().out, shape)


def test_the_version_is_the_packages(capsys: Output) -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for flag in ("--version", "-V"):
        assert ended(flag) == 0
        assert capsys.readouterr().out == f"stallscope {pyproject['project']['version']}\n"


def test_without_a_command_it_shows_help(capsys: Output) -> None:
    assert ended() == 0
    assert "check-config" in capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_every_command(shell: str, capsys: Output) -> None:
    assert ended("completion", shell) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("run", "--port", "1"),
        ("run", "extra"),
        ("run", "--set", "nodot=1"),
        ("run", "--set", "http.listen"),
        ("run", "--config"),
        ("demo",),
        ("demo", "nonsense"),
        ("completion", "tcl"),
        ("explain", "no_such_rule"),
        ("explain", "cpu_stolen", "cpu_contended"),
        ("hooks", "--path"),
        ("hooks", "--path", "cobol"),
        ("doctor", "--for", "soon"),
        ("doctor", "--for", ""),
        ("doctor", "--for", "1s"),
        ("doctor", "--for", "61m"),
        ("doctor", "--for", "nan"),
        ("doctor", "--for", "-5s"),
        ("doctor", "--for", "inf"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_64_and_words_on_stderr(arguments: tuple[str, ...], capsys: Output) -> None:
    assert ended(*arguments) == exits.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1].startswith("stallscope")
    assert "Traceback" not in told.err


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("2m", 120), ("3s", 3), ("60m", 3600), ("4.5s", 4.5)]
)
def test_a_duration_is_seconds_or_minutes(text: str, seconds: float) -> None:
    assert duration(text) == seconds


def test_ctrl_c_is_exit_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli._HANDLERS, "explain", interrupted)
    assert ended("explain") == 130


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "out of memory"),
        (ImportError("libpq.so: failed to map segment"), "libpq.so: failed to map segment"),
    ],
)
def test_a_start_without_room_is_one_line(
    error: Exception, words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> int:
        raise error

    monkeypatch.setattr(cli, "main", fails)
    monkeypatch.setattr(stallscope, "own_first", lambda path, *_: list(path))
    monkeypatch.setattr(stallscope, "_hear_signals", lambda: None)
    with pytest.raises(SystemExit) as end:
        stallscope.main()
    assert end.value.code == exits.UNAVAILABLE
    assert capfd.readouterr().err == f"stallscope: cannot start: {words}\n"


# ---- hooks


def test_every_language_that_has_a_hook_has_its_line_and_its_files(capsys: Output) -> None:
    assert {path.name for path in (ROOT / "hooks").iterdir() if path.is_dir()} == {*LOADED_BY}
    assert ended("hooks") == exits.HEALTHY
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == len(LOADED_BY)
    for line in lines:
        assert os.path.exists(line.rpartition("=")[2]), line


def test_a_hook_that_is_not_installed_is_reported_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        hook_path("python", tmp_path)


# ---- what Python finds first


def test_the_own_packages_come_after_the_standard_library_and_before_all_else() -> None:
    path = ["/app", "/usr/lib/python311.zip", "/usr/lib/python3.11", "/usr/lib/python3.11/lib-dynload", "/venv"]
    path[1] = f"/usr/lib/python{sys.version_info.major}{sys.version_info.minor}.zip"
    assert own_first(path, "/own", "/usr/lib/python3.11") == [*path[1:4], "/own", "/venv", "/app"]
    assert own_first(own_first(path, "/venv", path[2]), "/venv", path[2]) == [
        *path[1:],
        "/app",
    ]  # a second time changes nothing
    assert own_first(["/app", "/venv"], "/own", "/elsewhere") == ["/own", "/app", "/venv"]


# ---- check-config


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("env:STALLSCOPE_TEST_NOWHERE", "empty or not set"),
        ("file:/nowhere/dsn", "No such file"),
        ("env:STALLSCOPE_TEST_BROKEN", "cannot be used"),
    ],
)
def test_a_dsn_that_is_not_to_be_had_is_said_and_is_no_fault(
    place: str, words: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "os.environ", {**os.environ, "STALLSCOPE_TEST_BROKEN": "postgresql://app:hunter2@s3cr3t@db/app"}
    )
    monkeypatch.setattr(cli, "_load", lambda _, **__: load(None, {}, [("postgres.targets", f"main={place}")]))
    assert ended("check-config") == exits.HEALTHY
    said = capsys.readouterr()
    assert f"postgres.targets.main = {place}: " in said.err
    assert words in said.err
    assert "s3cr3t" not in said.out + said.err


def test_a_dsn_that_is_there_is_not_remarked_on(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {**os.environ, "TEST_DSN": "postgresql://app@db/app"})
    assert ended("check-config", "--set", "postgres.targets=main=env:TEST_DSN") == exits.HEALTHY
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["run", "doctor", "check-config"])
def test_unusable_settings_are_exit_78_and_every_fault_one_line(command: str, capsys: Output, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text('[http]\nlisten = "x"\n[nonsense]\na = 1\n')
    assert ended(command, "--config", str(file), "--set", "log.format=yaml") == exits.BAD_CONFIG
    told = capsys.readouterr()
    assert told.out == ""
    lines = told.err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("stallscope: ") for line in lines)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("requests.file=/run/in flight", "requests.own=true"),
        ("suspension.spin_every_seconds=20,0,0,0", "app.pid=7"),
        ("rules.disabled=cpu_stolen,cpu_contended", "log.format=none"),
        ('app.process=a"b\\c',),
        ('postgres.targets=main=env:URL,replica=file:/run/a"b',),
    ],
)
def test_what_check_config_prints_is_a_file_with_the_same_meaning(
    settings: tuple[str, ...], capsys: Output, tmp_path: Path
) -> None:
    flags = [part for setting in settings for part in ("--set", setting)]
    assert ended("check-config", *flags) == exits.HEALTHY
    file = tmp_path / "same.toml"
    file.write_text(capsys.readouterr().out)
    pairs = [(key, value) for key, _, value in (setting.partition("=") for setting in settings)]
    assert load(file, {}) == load(None, {}, pairs)


def test_check_config_as_json_is_the_whole_tree(capsys: Output) -> None:
    assert ended("check-config", "--json", "--set", "http.listen=[::1]:0") == exits.HEALTHY
    plain = json.loads(capsys.readouterr().out)
    assert plain["http"]["listen"] == "[::1]:0"
    assert Config.model_validate(plain) == load(None, {}, [("http.listen", "[::1]:0")])


def test_check_config_says_what_the_settings_cost(capsys: Output) -> None:
    def cost(*arguments: str) -> float:
        assert ended("check-config", *arguments) == exits.HEALTHY
        return float(capsys.readouterr().out.rpartition("at most about ")[2].split()[0])

    assert 0 < cost() < cost("--set", "suspension.heartbeat_seconds=0.06")


def test_the_environment_counts_as_settings(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setenv("STALLSCOPE_HTTP__LISTEN", "127.0.0.1:7")
    assert ended("check-config", "--json") == exits.HEALTHY
    assert json.loads(capsys.readouterr().out)["http"]["listen"] == "127.0.0.1:7"


def test_a_look_needs_no_file_of_settings(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """What the flags of ``doctor`` say is checked as settings are, and a password is not shown."""
    seen: list[Config] = []

    async def examine(config: Config, *_: Any, **__: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        seen.append(config)
        return to_json(fixed.healthy()), {}

    monkeypatch.setattr("agent.commands.doctor.examine", examine)
    page = "http://127.0.0.1:8080/metrics"
    monkeypatch.setenv("DOCTOR_DSN", "")
    look = ("--pid", "7", "--port", "6379", "--port", "5432", "--url", page)
    assert ended("doctor", *look, "--dsn", "postgresql://u:secret@db/app") == exits.HEALTHY
    (config,) = seen
    assert (config.app.pid, config.connections.ports) == (7, (6379, 5432))
    assert (config.requests.metrics_url, config.pool.metrics_url) == (page, page)
    (place,) = config.postgres.targets.values()
    assert os.environ[place.removeprefix("env:")] == "postgresql://u:secret@db/app"
    assert ended("doctor", "--dsn", "env:DATABASE_URL") == exits.HEALTHY
    assert list(seen[1].postgres.targets.values()) == ["env:DATABASE_URL"]
    assert ended("doctor", "--dsn", "u:secret@db", "--pid", "x", "--port", "0") == exits.BAD_CONFIG
    told = capsys.readouterr()
    assert "secret" not in told.out + told.err
    assert len(told.err.splitlines()) == 2


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (fixed.healthy(), exits.HEALTHY),
        (fixed.failing(), exits.FINDINGS),
        (fixed.report("pass", "worth knowing", fixed.finding(severity="info")), exits.FINDINGS),
        (fixed.report("warn", "the CPU is missing, and no cause was found"), exits.FINDINGS),
        (fixed.blind(), exits.CANNOT_TELL),
    ],
)
def test_only_a_report_that_passes_ends_as_healthy(
    report: Report, code: int, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    async def examine(*_: Any, **__: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return to_json(report), {}

    monkeypatch.setattr("agent.commands.doctor.examine", examine)
    assert ended("doctor") == code
    assert capsys.readouterr().out.startswith("HEALTHY") is (report.status == "pass")


def test_a_short_look_says_what_it_was_too_short_for() -> None:
    report = to_json(fixed.blind())
    report["unknown"] = [
        {"rule": rule, "because": why, "remedy": "", "code": code}
        for rule, why, code in (
            ("a", "one sample", "not_yet"),
            ("b", "one sample", "not_yet"),
            ("c", "no role", "absent"),
        )
    ]
    assert [line.partition("may tell: ")[2] for line in too_short_for(report, 12.0)] == ["a, b: one sample"]
    assert not too_short_for(report, 3600.0)


# ---- explain


def test_explain_without_a_rule_lists_them_all(capsys: Output) -> None:
    assert ended("explain") == exits.HEALTHY
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [rule.id for rule in RULES]


def test_explain_tells_one_rule_as_text_and_as_json(capsys: Output) -> None:
    rule = RULES[-1].id
    assert ended("explain", rule) == exits.HEALTHY
    assert capsys.readouterr().out.startswith(f"{rule}: ")
    assert ended("explain", rule, "--json") == exits.HEALTHY
    assert json.loads(capsys.readouterr().out)["rule"] == rule


def test_explain_as_json_is_a_list_of_all_rules(capsys: Output) -> None:
    assert ended("explain", "--json") == exits.HEALTHY
    assert [item["rule"] for item in json.loads(capsys.readouterr().out)] == [rule.id for rule in RULES]


def test_an_unknown_rule_is_reported_with_the_known_ones(capsys: Output) -> None:
    ended("explain", "cpu_stollen")
    assert "cpu_stolen" in capsys.readouterr().err


# ---- report


@contextmanager
def something_at(status: int, body: bytes, path: str = "/health", raw: bytes = b"", kind: str = "") -> Iterator[str]:
    """The address of a server that gives one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if raw:
                self.wfile.write(raw)
                return
            self.send_response(status if self.path == path else 404)
            self.send_header("Content-Length", str(len(body)))
            if kind:
                self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with running(HTTPServer(("127.0.0.1", 0), Handler)) as http:
        yield f"http://127.0.0.1:{http.server_port}"


@pytest.mark.parametrize(
    ("report", "status", "code"),
    [
        (fixed.healthy(), 200, exits.HEALTHY),
        (fixed.blind(), 200, exits.CANNOT_TELL),
        (fixed.failing(), 503, exits.FINDINGS),
        (fixed.report("warn", "Work is held back.", fixed.finding(severity="warning")), 200, exits.FINDINGS),
    ],
)
@pytest.mark.parametrize("tail", ["", "/", "/health", "/report.txt", "/metrics"])
def test_the_exit_code_of_report_is_the_verdict(
    report: Report, status: int, code: int, tail: str, capsys: Output
) -> None:
    with something_at(status, json.dumps(to_json(report)).encode()) as url:
        assert ended("report", url + tail) == code
        assert report.verdict.split(":")[0] in capsys.readouterr().out
        assert ended("report", url.removeprefix("http://") + tail, "--json") == code
        assert json.loads(capsys.readouterr().out) == to_json(report)


def test_report_without_an_address_asks_the_agent_of_this_machine(
    capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with something_at(200, json.dumps(to_json(fixed.healthy())).encode()) as url:
        monkeypatch.setenv("STALLSCOPE_HTTP__LISTEN", url.removeprefix("http://"))
        assert ended("report") == exits.HEALTHY
    monkeypatch.delenv("STALLSCOPE_HTTP__LISTEN")
    monkeypatch.setattr("agent.commands.report.LOCAL", "127.0.0.1:1")
    assert ended("report") == exits.UNAVAILABLE
    assert "http://127.0.0.1:1/health" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (to_json(fixed.healthy()), exits.HEALTHY),
        (to_json(fixed.blind()), exits.CANNOT_TELL),
        (to_json(fixed.failing()), exits.FINDINGS),
        # A sentence may say anything: nobody looks into it.
        ({**to_json(fixed.healthy()), "verdict": "Cannot tell it from a healthy one."}, exits.HEALTHY),
        ({**to_json(fixed.healthy()), "breakdown": {"cpu": {}}}, exits.CANNOT_TELL),
    ],
)
def test_the_report_of_an_agent_without_the_key_conclusive_is_judged_by_what_it_has(
    report: dict[str, Any], code: int, capsys: Output
) -> None:
    older = {key: value for key, value in report.items() if key != "conclusive"}
    with something_at(200, json.dumps(older).encode()) as url:
        assert ended("report", url) == code
    assert capsys.readouterr().out.startswith("UNKNOWN") is (code == exits.CANNOT_TELL)


@pytest.mark.parametrize(
    "report", [fixed.healthy(), fixed.blind(), fixed.failing()], ids=["healthy", "blind", "failing"]
)
def test_report_writes_a_page_also_of_an_agent_that_has_no_timeline_yet(
    report: Report, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "report.html"
    with something_at(200, json.dumps(to_json(report)).encode()) as url:
        ended("report", url, "--html", str(file))
    assert report.verdict.split(":")[0] in capsys.readouterr().out
    assert file.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert "Nothing has been measured yet" in file.read_text("utf-8")


def test_a_page_that_cannot_be_written_is_exit_69_and_names_the_file(tmp_path: Path, capsys: Output) -> None:
    with something_at(200, json.dumps(to_json(fixed.healthy())).encode()) as url:
        assert ended("report", url, "--html", str(tmp_path / "none" / "page")) == exits.UNAVAILABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--html {tmp_path}/none/page" in line


def test_nothing_is_written_of_what_is_no_whole_report(tmp_path: Path, capsys: Output) -> None:
    with something_at(200, json.dumps({**to_json(fixed.healthy()), "agent": {}}).encode()) as url:
        assert ended("report", url, "--html", str(tmp_path / "page")) == exits.UNAVAILABLE
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "page").exists()


def refused(url: str, capsys: Output) -> None:
    assert ended("report", url) == exits.UNAVAILABLE
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("stallscope: ")
    assert len(told.err.splitlines()) == 1


#: Without one of these, or with a number in its place, an answer is no report.
CONTRACT = (
    "status", "verdict", "findings", "ruled_out", "unknown", "cannot_see", "breakdown", "platform", "agent",
)  # fmt: skip


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in to_json(fixed.healthy()).items() if name != key}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b"\xff\xfe"),
        (404, b"{}"),
        (500, b"{}"),
        (503, b'{"status":"fail","verdict":"Starting: nothing has been measured yet."}'),
        (503, b"Service Unavailable"),
        (200, b'{"findings": []}'),
        (200, b"[" * 100_000),
        *((200, json.dumps({**to_json(fixed.healthy()), key: 7}).encode()) for key in CONTRACT),
        *((200, json.dumps(without(key)).encode()) for key in CONTRACT),
    ],
    ids=lambda item: item[:40].decode("latin1") if isinstance(item, bytes) else str(item),
)
def test_an_answer_that_is_no_report_is_exit_69_and_one_line(status: int, body: bytes, capsys: Output) -> None:
    with something_at(status, body) as url:
        refused(url, capsys)


def test_why_an_agent_refuses_is_told(capsys: Output) -> None:
    why = "Host 'stallscope.example.com' is none of this agent's names\x1b[2J"
    with something_at(421, json.dumps({"detail": why}).encode()) as url:
        assert ended("report", url) == exits.UNAVAILABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert "421" in line
    assert "none of this agent's names?[2J" in line


@pytest.mark.parametrize(
    "change",
    [
        {"status": "UP"},
        {"verdict": ""},
        {"breakdown": {}},
        {"agent": {}},
        {"findings": [{}]},
        {"unknown": [{"rule": "cpu_stolen"}]},
        {"generated": None},
        {"conclusive": "yes"},
    ],
    ids=str,
)
def test_an_answer_that_only_looks_like_a_report_is_exit_69_and_one_line(
    change: dict[str, Any], capsys: Output
) -> None:
    plain = {**to_json(fixed.healthy()), **change}
    body = {key: value for key, value in plain.items() if value is not None}
    with something_at(200, json.dumps(body).encode()) as url:
        refused(url, capsys)


@pytest.mark.parametrize("status", [429, 500])
def test_a_failing_report_is_one_whatever_its_configured_status(status: int, capsys: Output) -> None:
    with something_at(status, json.dumps(to_json(fixed.failing())).encode(), kind="application/health+json") as url:
        assert ended("report", url) == exits.FINDINGS
    assert capsys.readouterr().out.startswith("FAILING")


@pytest.mark.parametrize("raw", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"\r\n"])
def test_a_server_that_does_not_speak_http_is_exit_69_and_one_line(raw: bytes, capsys: Output) -> None:
    with something_at(200, b"", raw=raw) as url:
        refused(url, capsys)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:1",
        "http://127.0.0.1:1/health",
        "http://",
        "http://[::1",
        "no.such.host.invalid",
        "http://127.0.0.1:port",
        "http://a b/",
    ],
)
def test_an_address_where_nobody_answers_is_exit_69_and_one_line(url: str, capsys: Output) -> None:
    refused(url, capsys)


# ---- the process: what is closed, full or gone


def process(
    *arguments: str, stdout: Any = subprocess.PIPE, before: Callable[[], object] | None = None, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, "-m", "stallscope", *arguments],
        stdout=stdout, stderr=subprocess.PIPE, timeout=30, check=False, cwd=ROOT, env=environ, preexec_fn=before,
    )  # fmt: skip


@pytest.mark.parametrize("arguments", [("explain",), ("--help",)], ids=" ".join)
def test_a_reader_that_has_gone_is_no_fault(arguments: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = process(*arguments, stdout=gone)
    assert (done.returncode, done.stderr) == (exits.HEALTHY, b"")


@pytest.mark.parametrize("unbuffered", ["1", ""], ids=["as in the image", "buffered"])
def test_a_full_disk_under_standard_output_is_exit_69_and_one_line(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = process("explain", stdout=full, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == exits.UNAVAILABLE
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("stallscope: cannot write the output: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain",),
        ("check-config",),
        ("run", "--listen", "192.0.2.1:1"),
    ],
    ids=" ".join,
)
def test_without_standard_output_there_is_no_traceback(arguments: tuple[str, ...]) -> None:
    done = process(*arguments, stdout=None, before=lambda: os.close(1))
    assert b"Traceback" not in done.stderr
    assert done.returncode == (exits.UNAVAILABLE if "run" in arguments else exits.HEALTHY)
