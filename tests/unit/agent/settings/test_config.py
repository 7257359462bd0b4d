"""Settings: where they come from, and that every fault is told at once with its path."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.settings.load import ConfigError, anybody_told, history_bytes, load, predicted_cpu_ratio
from agent.settings.outside import remarks
from agent.settings.schema import Config, Http, parse_address
from probes.app.pool import READING_BYTES, PoolSettings
from probes.app.processes import are_watched
from probes.app.search import App
from probes.cpu.registration import Suspension
from probes.logs.registration import LogDelivery, Logs
from probes.postgres.registration import Postgres
from probes.registration import Context
from probes.section import Section
from probes.sockets.registration import Connections

RULES = ("cpu_stolen", "cpu_contended")
SECRET = "hunter2-s3cr3t"  # noqa: S105 - it is the point of the test


def faults(
    path: Path | None = None, environ: dict[str, str] | None = None, flags: tuple[tuple[str, str], ...] = ()
) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, flags, known_rules=RULES)
    return caught.value.faults


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stallscope.toml"


def sections() -> Iterator[tuple[str, type[Section]]]:
    for name, field in Config.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, Section)
        yield name, field.annotation


# ---- where a setting comes from


def test_nothing_given_is_a_usable_configuration() -> None:
    config = load(None, {}, (), known_rules=RULES)
    assert config == Config()
    assert predicted_cpu_ratio(config) <= config.budget.cpu_ratio
    assert history_bytes(config) < config.budget.memory_bytes


@pytest.mark.parametrize(
    ("in_file", "in_environment", "in_flag", "wanted"),
    [
        ("1.5", None, None, 1.5),
        ("1.5", "2.5", None, 2.5),
        ("1.5", None, "3.5", 3.5),
        (None, "2.5", "3.5", 3.5),
        ("1.5", "2.5", "3.5", 3.5),
    ],
)
def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    file: Path, in_file: str | None, in_environment: str | None, in_flag: str | None, wanted: float
) -> None:
    file.write_text(f"[requests]\ntimeout_seconds = {in_file}\n" if in_file else "")
    environ = {"STALLSCOPE_REQUESTS__TIMEOUT_SECONDS": in_environment} if in_environment else {}
    flags = [("requests.timeout_seconds", in_flag)] if in_flag else []
    assert load(file, environ, flags).requests.timeout_seconds == wanted


def test_the_last_of_two_equal_flags_wins() -> None:
    flags = [("http.listen", "127.0.0.1:1"), ("http.listen", "127.0.0.1:2")]
    assert load(None, {}, flags).http.listen == "127.0.0.1:2"


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("suspension.spin_seconds", "0.01, 0.02,0.03 ,0.04", (0.01, 0.02, 0.03, 0.04)),
        ("suspension.spin_every_seconds", "20,0,0,0", (20.0, 0.0, 0.0, 0.0)),
        ("rules.disabled", "cpu_stolen,cpu_contended", ("cpu_stolen", "cpu_contended")),
        ("rules.disabled", "", ()),
        ("app.pid", "17", 17),
        ("requests.own", "true", True),
        ("http.listen", "[::1]:0", "[::1]:0"),
        ("http.listen", "localhost:1, [::]:2", "localhost:1, [::]:2"),
        ("http.open_paths", "/livez,/metrics", ("/livez", "/metrics")),
        ("postgres.targets", "main=env:URL, r-2=file:/run/a=b", {"main": "env:URL", "r-2": "file:/run/a=b"}),
        ("postgres.targets", "", {}),
        (
            "pool.names",
            'size=a_max, checked_out=a{state="used"}|b',
            {"size": "a_max", "checked_out": 'a{state="used"}|b'},
        ),
        ("pool.size", "20", 20),
        ("pool.preset", "hikaricp", "hikaricp"),
        ("pool.preset", "", ""),
        ("pool.label", "shard", "shard"),
        ("logs.stdout", "false", False),
        ("logs.files", "app=/var/log/app/*.log, tmp=/tmp", {"app": "/var/log/app/*.log", "tmp": "/tmp"}),
        ("logs.hook_listen", "udp:[::1]:9769,unix:/run/hook.sock", ("udp:[::1]:9769", "unix:/run/hook.sock")),
        ("logs.hook_listen", "", ()),
        ("logs.metrics_urls", "fluent=http://127.0.0.1:2020/api", {"fluent": "http://127.0.0.1:2020/api"}),
        ("logs.names", "entries=a|b,dropped=c", {"entries": "a|b", "dropped": "c"}),
        ("logs.medium", "disk", "disk"),
        ("cloud_logging.endpoint", "http://127.0.0.1:8085", "http://127.0.0.1:8085"),
        ("cloud_logging.endpoint", "restricted.googleapis.com", "restricted.googleapis.com"),
    ],
)
def test_text_becomes_the_settings_own_type(key: str, text: str, wanted: Any) -> None:
    section, name = key.split(".")
    variable = f"STALLSCOPE_{section}__{name}".upper()
    for config in (load(None, {}, [(key, text)]), load(None, {variable: text})):
        assert getattr(getattr(config, section), name) == wanted


@pytest.mark.parametrize(
    "name",
    [
        "STALLSCOPE_SERVICE_HOST",
        "STALLSCOPE_SERVICE_PORT",
        "STALLSCOPE_SERVICE_PORT_METRICS",
        "STALLSCOPE_PORT",
        "STALLSCOPE_PORT_9768_TCP",
        "STALLSCOPE_PORT_9768_TCP_PROTO",
        "STALLSCOPE_AGENT_SERVICE_HOST",
    ],
)
def test_what_kubernetes_sets_for_a_service_of_that_name_is_no_setting(name: str) -> None:
    assert load(None, {name: "tcp://10.0.0.1:9768"}) == Config()


def test_other_peoples_environment_is_not_looked_at() -> None:
    assert load(None, {"DATABASE_URL": "x", "PATH": "/bin", "stallscope_http__listen": "nonsense"}) == Config()


def test_settings_cannot_be_changed_while_the_agent_runs() -> None:
    config = load(None, {})
    with pytest.raises(AttributeError, match="frozen"):
        config.http = Http()
    with pytest.raises(AttributeError, match="frozen"):
        config.http.listen = "127.0.0.1:1"
    with pytest.raises(AttributeError, match="frozen"):
        del config.http.listen


# ---- faults


def test_every_fault_of_every_source_is_reported_at_once(file: Path) -> None:
    file.write_text('[http]\nlisten = "nowhere"\nprot = 1\n[suspension]\nevery_seconds = "often"\n[nonsense]\na = 1\n')
    environ = {"STALLSCOPE_HISTORY__SECONDS": "5", "STALLSCOPE_NOTHING": "1"}
    told = faults(file, environ, (("log.format", "yaml"), ("budget.cpu_ratio", "nan")))
    for path, source in {
        "http.listen": str(file),
        "http.prot": str(file),
        "suspension.every_seconds": str(file),
        "nonsense": str(file),
        "history.seconds": "environment STALLSCOPE_HISTORY__SECONDS",
        "STALLSCOPE_NOTHING": "",
        "log.format": "flag",
        "budget.cpu_ratio": "flag",
    }.items():
        (fault,) = [fault for fault in told if fault.startswith((path, f"environment {path}"))]
        assert source in fault
        assert "\n" not in fault
    assert len(told) == 8


def test_impossible_values_of_several_sections_are_reported_at_once() -> None:
    told = faults(
        flags=(
            ("suspension.spin_seconds", "0.1,0.05,0.2,5"),
            ("suspension.spin_every_seconds", "0.5,0,0,0"),
            ("suspension.heartbeat_seconds", "0.02"),
            ("budget.cpu_ratio", "0.001"),
            ("rules.disabled", "cpu_stollen"),
        )
    )
    starts = [fault.split(":")[0].split(" =")[0] for fault in told]
    assert sorted(starts) == [
        "budget.cpu_ratio",
        "rules.disabled",
        "suspension.spin_every_seconds",
        "suspension.spin_seconds",
        "suspension.spin_seconds",
    ]


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        (("http.listn", "x"), "did you mean listen?"),
        (("suspension.heartbeat", "1"), "did you mean heartbeat_seconds?"),
        (("htp.listen", "x"), "did you mean http?"),
        (("http.zzz", "x"), "known here: allowed_hosts, fail_status, listen, most_connections, open_paths, web_config"),
        (("zzz.listen", "x"), "known here: alertmanager, alerts, app, budget, "),
    ],
)
def test_a_misspelt_key_is_refused_with_what_was_perhaps_meant(flag: tuple[str, str], hint: str) -> None:
    (fault,) = faults(flags=(flag,))
    assert "no such setting" in fault
    assert hint in fault


@pytest.mark.parametrize(
    "flag",
    [
        ("http.listen", "127.0.0.1"),
        ("http.listen", ""),
        ("http.listen", "127.0.0.1:1,"),
        ("http.listen", "127.0.0.1:1,127.0.0.1:1"),
        ("http.open_paths", "/no-page"),
        ("http.most_connections", "0"),
        ("http.most_connections", "1.5"),
        ("suspension.every_seconds", "inf"),
        ("suspension.every_seconds", "0"),
        ("suspension.every_seconds", "-5"),
        ("suspension.heartbeat_seconds", "nan"),
        ("suspension.spin_seconds", "0.01,0.02"),
        ("suspension.spin_seconds", "0.01,0.02,0.03,x"),
        ("suspension.spin_seconds", "0.01,0.02,0.03,nan"),
        ("app.pid", "0"),
        ("app.pid", ""),
        ("requests.metrics_url", "file:///etc/passwd"),
        ("requests.metrics_url", ""),
        ("requests.metrics_url", "http:///metrics"),
        ("requests.metrics_url", "http://[::1/metrics"),
        ("requests.metrics_url", "http://app:65536/metrics"),
        ("requests.metrics_url", "http://app:-1/metrics"),
        ("requests.metrics_url", "http://app:web/metrics"),
        ("pool.metrics_url", "ftp://app/metrics"),
        ("pool.metrics_url", "http://app:word@app/metrics"),
        ("pool.preset", "hikari"),
        ("pool.names", "checked_out"),
        ("pool.names", "checked_out=a b"),
        ("pool.names", 'checked_out=a{b="c"'),
        ("pool.names", "checkedout=a"),
        ("pool.label", "a-b"),
        ("pool.size", "0"),
        ("pool.every_seconds", "16"),
        ("logs.files", "app=var/log"),
        ("logs.files", "app=/var/**/a.log"),
        ("logs.files", "App=/var/log"),
        ("logs.files", "stdout=/var/log"),
        ("logs.hook_listen", "udp:0.0.0.0:9769"),
        ("logs.hook_listen", "udp:10.0.0.1:9769"),
        ("logs.hook_listen", "unix:hook.sock"),
        ("logs.metrics_urls", "fluent=ftp://a"),
        ("logs.metrics_urls", "hooks=http://a/metrics"),
        ("logs.names", "entries=a b"),
        ("logs.names", "depth=a"),
        ("logs.medium", "tape"),
        ("logs.every_seconds", "61"),
        ("log_delivery.log_names", "app,a b"),
        ("log_delivery.every_seconds", "59"),
        ("log_delivery.every_seconds", "901"),
        ("log_delivery.canary_log", "projects/p:logs"),
        ("log_delivery.canary_every_seconds", "14"),
        ("log_delivery.canary_every_seconds", "301"),
        ("log_delivery.leader", "host"),
        ("log_delivery.leader", "file:leader"),
        ("cloud_logging.project", "My Project"),
        ("cloud_logging.endpoint", "http://logging.googleapis.com:443"),
        ("cloud_logging.endpoint", "http://10.0.0.1:80"),
        ("cloud_logging.endpoint", "http://127.0.0.1"),
        ("cloud_logging.endpoint", "http://127.0.0.1:1/path"),
        ("cloud_logging.endpoint", "https://logging.googleapis.com"),
        ("cloud_logging.timeout_seconds", "0"),
        ("cloud_logging.findings_log", "a:b"),
        ("alerts.severity", "error"),
        ("alerts.wait_seconds", "601"),
        ("alerts.page_url", "page"),
        ("otlp.enabled", "maybe"),
        ("webhook.url", "https://hooks.slack.com/services/T/B/x"),
        ("webhook.body", "slak"),
        ("webhook.body", '{"text": "$nobody"}'),
        ("webhook.token", "t0k"),
        ("webhook.secret", "env:"),
        ("webhook.headers", "Host=env:A"),
        ("webhook.headers", "X-A=value"),
        ("alerts.timeout_seconds", "0"),
        ("alertmanager.urls", "ftp://a"),
        ("alertmanager.urls", "http://user:word@a"),
        ("alertmanager.urls", "http://a/?x=1"),
        ("alertmanager.labels", "rule=a"),
        ("alertmanager.labels", "a-b=c"),
        ("alertmanager.every_seconds", "4"),
        ("alerts.kubernetes_events", "2"),
        ("http.fail_status", "199"),
        ("http.fail_status", "600"),
        ("http.fail_status", "503.5"),
        ("requests.own", "perhaps"),
        ("budget.memory_bytes", "64MB"),
        ("log.format", ""),
        ("history.seconds", "1e9"),
    ],
    ids="=".join,
)
def test_an_impossible_value_is_refused_with_its_path_and_its_source(flag: tuple[str, str]) -> None:
    for fault in faults(flags=(flag,)):
        assert fault.startswith(flag[0])
        assert f"flag for {flag[0]}" in fault


@pytest.mark.parametrize(
    ("flag", "allowed"),
    [
        (("pool.preset", "hikari"), "one of pgxpool, database_sql, hikaricp"),
        (("pool.names", "checkedout=a"), "one of size, checked_out, waiting"),
        (("pool.names", "waiting=a b"), "'a b' is no series: NAME or NAME{LABEL="),
        (("logs.names", "depth=a"), "one of entries, waiting_bytes, files"),
        (("logs.files", "hooks=/a"), "'hooks' is the name of a source that is always there"),
        (("logs.hook_listen", "udp:0.0.0.0:9769"), "a loopback address, like udp:127.0.0.1:9769"),
        (("log_delivery.leader", "me"), "always, never, host:SUFFIX (like host:-0), env:VARIABLE or file:/PATH"),
        (("log_delivery.canary_log", "a b"), "letters, digits, / _ - and ., like winston_log"),
        (("cloud_logging.endpoint", "http://a:80"), "http://HOST:PORT on loopback: a server for tests"),
        (("cloud_logging.endpoint", "a/b"), "HOST or HOST:PORT, like restricted.googleapis.com"),
    ],
)
def test_a_refused_name_says_what_is_allowed(flag: tuple[str, str], allowed: str) -> None:
    (fault,) = faults(flags=(flag,))
    assert allowed in fault


@pytest.mark.parametrize("given", [
    f"postgresql://u:{SECRET}@h/db", f"postgresql://u:{SECRET}@h/db?a=b", SECRET, f"Authorization: Bearer {SECRET}", f"u:{SECRET}",
])  # fmt: skip
@pytest.mark.parametrize(
    "key", ["postgres.targets", "redis.targets", "redis.passwords", "webhook.headers", "logs.metrics_urls"]
)
def test_a_secret_that_stands_where_a_name_is_due_is_not_repeated(key: str, given: str) -> None:
    """STALLSCOPE_POSTGRES__TARGETS=$DATABASE_URL is the first thing that somebody tries."""
    (fault,) = faults(flags=((key, given),))
    assert (
        SECRET not in fault or key == "logs.metrics_urls"
    )  # whose own text is shown, and whose addresses hold no password
    assert "NAME=VALUE" in fault or "what stands before the =" in fault


def test_a_name_that_is_none_is_repeated() -> None:
    (fault,) = faults(flags=(("postgres.targets", "Main DB=env:X"),))
    assert "'Main DB' is no name" in fault


def test_an_unknown_section_in_the_environment_names_the_variable() -> None:
    (fault,) = faults(environ={"STALLSCOPE_HTTPP__LISTEN": "127.0.0.1:1"})
    assert "STALLSCOPE_HTTPP__LISTEN" in fault


@pytest.mark.parametrize("userinfo", ["app", "app:", ":word", "app:word", ""], ids=repr)
def test_a_metrics_url_must_not_hold_a_user_or_a_password(userinfo: str) -> None:
    (fault,) = faults(flags=(("requests.metrics_url", f"http://{userinfo}@app:8080/metrics"),))
    assert "must not hold a user or a password" in fault


@pytest.mark.parametrize("end", ["app:8080/metrics", "app:65536/metrics"])
@pytest.mark.parametrize("odd", ["", "#1", "?1", "/1", "'1", '"1', " 1", "@1", "[1"])
@pytest.mark.parametrize(
    "name", ["REQUESTS__METRICS_URL", "ALERTMANAGER__URLS", "ALERTS__PAGE_URL", "LOGS__METRICS_URLS"]
)
def test_a_password_that_is_refused_is_not_repeated(name: str, odd: str, end: str) -> None:
    """What has a #, ? or / in it is no password to urlsplit, which then says what it took for a port."""
    for secret in (f"{SECRET}{odd}", f"{odd}{SECRET}"):
        told = faults(environ={f"STALLSCOPE_{name}": f"http://app:{secret}@{end}"})
        assert told
        assert SECRET not in "".join(told)


@pytest.mark.parametrize(
    "url", ["http://app", "https://app:8443/metrics?x=1", "http://127.0.0.1:1/", "http://[::1]:65535/metrics"]
)
def test_a_plain_metrics_url_is_taken(url: str) -> None:
    assert load(None, {}, [("requests.metrics_url", url)]).requests.metrics_url == url


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"[http\n", "not TOML"),
        (b"a: yaml\n", "not TOML"),
        (b"\xff\xfe", "not TOML"),
        (None, "No such file"),
        (b"http = 3\n", "http"),
        (b"[http]\n[http]\n", "not TOML"),
    ],
)
def test_an_unusable_file_is_one_fault_with_its_name(file: Path, content: bytes | None, word: str) -> None:
    if content is not None:
        file.write_bytes(content)
    (fault,) = faults(file)
    assert word in fault


def test_a_directory_is_not_a_settings_file(tmp_path: Path) -> None:
    (fault,) = faults(tmp_path)
    assert str(tmp_path) in fault


def test_what_belongs_to_the_hooks_is_no_setting() -> None:
    of_hooks = {
        "STALLSCOPE_HOOK": "udp:127.0.0.1:9769",
        "STALLSCOPE_HOOK_NAME": "shop",
        "STALLSCOPE_HOOK_LOGS": "stdout",
    }
    assert load(None, of_hooks) == Config()
    with pytest.raises(ConfigError, match="STALLSCOPE_HOOK_LISTEN: no such setting"):
        load(None, {"STALLSCOPE_HOOK_LISTEN": "udp:127.0.0.1:9769"})


def test_the_variables_of_every_hook_are_known() -> None:
    hooks = Path(__file__).resolve().parents[4] / "hooks"
    told = {
        name for path in hooks.rglob("*") if path.suffix in (".py", ".js", ".go", ".pth", ".md")
        for name in re.findall(r"STALLSCOPE_[A-Z_]+", path.read_text("utf-8"))
    }  # fmt: skip
    assert "STALLSCOPE_HOOK" in told
    assert load(None, dict.fromkeys(told, "x")) == Config()


def test_of_several_addresses_each_that_is_wrong_is_named() -> None:
    (fault,) = faults(flags=(("http.listen", "127.0.0.1:1,nowhere:1,[::1]:99999"),))
    assert "'nowhere:1': the host must be" in fault
    assert "'[::1]:99999': must be HOST:PORT" in fault


@pytest.mark.parametrize("key", ["http.most_connections", "http.listen"])
def test_of_a_value_without_end_only_the_beginning_is_shown(key: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, {}, [(key, "127.0.0.1:" * (key == "http.listen") + "9" * 5000)])
    (fault,) = error.value.faults
    assert key in fault
    assert len(fault) < 300


def test_a_broken_file_does_not_hide_the_faults_of_the_environment(file: Path) -> None:
    file.write_text("[")
    assert len(faults(file, {"STALLSCOPE_HTTP__LISTEN": "x"})) == 2


@pytest.mark.parametrize(
    "name", ["STALLSCOPE_DSN", "STALLSCOPE_POSTGRES__DSN", "STALLSCOPE_HTTP__DSN", "STALLSCOPE_", "STALLSCOPE___"]
)
def test_the_value_of_an_unknown_variable_is_never_repeated(name: str) -> None:
    told = faults(environ={name: f"postgres://app:{SECRET}@db/app"})
    assert told
    assert SECRET not in "".join(told)


def test_the_value_under_an_unknown_key_of_the_file_is_never_repeated(file: Path) -> None:
    file.write_text(f'[postgres]\ndsn = "postgres://app:{SECRET}@db/app"\n[http]\npassword = "{SECRET}"\n')
    told = faults(file)
    assert len(told) == 2
    assert SECRET not in "".join(told)


def test_a_rule_that_does_not_exist_cannot_be_disabled() -> None:
    (fault,) = faults(flags=(("rules.disabled", "cpu_stolen,cpu_borrowed"),))
    assert "'cpu_borrowed'" in fault
    assert "cpu_contended" in fault


# ---- what is predicted


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        ((("suspension.heartbeat_seconds", "0.02"), ("budget.cpu_ratio", "0.004")), "budget.cpu_ratio"),
        ((("suspension.budget_ratio", "0.05"),), "budget.cpu_ratio"),
        (
            (("history.seconds", "3600"), ("suspension.every_seconds", "1"), ("budget.memory_bytes", str(64 * 2**20)),
             ("budget.cpu_ratio", "0.1")),
            "history.seconds",
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_meet_the_budget_are_refused(flags: tuple[tuple[str, str], ...], path: str) -> None:
    (fault,) = faults(flags=flags)
    assert fault.startswith(path)


@given(shorter=st.floats(0.02, 0.9), factor=st.floats(1.01, 10))
def test_closer_heartbeats_cost_more(shorter: float, factor: float) -> None:
    def cost(interval: float) -> float:
        return predicted_cpu_ratio(Config(suspension=Suspension(heartbeat_seconds=min(1.0, interval))))

    assert cost(shorter) > cost(shorter * factor) or shorter * factor > 1


def test_closer_slots_need_more_memory() -> None:
    sizes = [history_bytes(Config(suspension=Suspension(every_seconds=every))) for every in (1, 5, 20, 60)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("predicted", [predicted_cpu_ratio, history_bytes])
def test_pools_cost_when_they_are_looked_at_and_more_when_more_often(predicted: Callable[[Config], float]) -> None:
    url = "http://app/metrics"
    deaf = Logs(hook_listen=())
    costs = [
        predicted(Config(logs=deaf, pool=PoolSettings(metrics_url=u, every_seconds=s)))
        for u, s in ((None, 1), (url, 15), (url, 1))
    ]
    assert costs == sorted(set(costs))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"connections": Connections(ports=())}, {}),
        ({"connections": Connections(every_seconds=60.0)}, {}),
        ({}, {"connections": Connections(every_seconds=1.0)}),
        ({"connections": Connections(ports=())}, {"connections": Connections(ports=()), "app": App(pid=1)}),
        ({}, {"postgres": Postgres(targets={"main": "env:DSN"})}),
    ],
    ids=["connections", "rare looks", "frequent looks", "processes", "a database"],
)
def test_what_is_watched_needs_memory_and_more_when_more_often(less: dict[str, Any], more: dict[str, Any]) -> None:
    assert history_bytes(Config(**less)) < history_bytes(Config(**more))


def test_pools_that_hooks_may_report_have_their_room_in_the_history() -> None:
    deaf, hearing = (history_bytes(Config(logs=Logs(hook_listen=places))) for places in ((), ("udp:127.0.0.1:9769",)))
    assert hearing - deaf >= int(Config().history.seconds / Config().pool.every_seconds) * READING_BYTES


@pytest.mark.parametrize("predicted", [predicted_cpu_ratio, history_bytes])
@pytest.mark.parametrize(
    "source",
    [
        {"hook_listen": ("udp:127.0.0.1:9769",)},
        {"files": {"a": "/a"}},
        {"metrics_urls": {"a": "http://a/"}},
        {"stdout": True},
    ],
    ids=["hooks", "files", "pages", "stdout"],
)
def test_every_source_of_logs_costs(predicted: Callable[[Config], float], source: dict[str, Any]) -> None:
    none = {"hook_listen": (), "stdout": False}
    costs = [predicted(Config(logs=Logs(**(none | more)))) for more in ({}, source)]
    assert costs == sorted(set(costs))
    unseen = Connections(ports=())  # and no app.process: nothing tells which processes are the app's
    outputs = [predicted(Config(connections=unseen, logs=Logs(**(none | {"stdout": look})))) for look in (True, False)]
    assert outputs[0] == outputs[1]


def test_two_sources_of_logs_of_one_name_are_refused() -> None:
    (fault,) = faults(flags=(("logs.files", "a=/a"), ("logs.metrics_urls", "a=http://a/")))
    assert fault == "logs.metrics_urls: the name 'a' stands in logs.files too"


# ---- the way to Cloud Logging


def test_who_asks_the_log_service_must_be_said_and_the_library_needs_room() -> None:
    found = faults(flags=(("log_delivery.canary_log", "c"), ("log_delivery.filter", "x")))
    memory, query, leader = sorted(found)
    assert memory.startswith("budget.memory_bytes = 100663296: log_delivery and cloud_logging.findings_log load")
    assert query == "log_delivery.filter: is of no use without log_delivery.log_names"
    assert leader.startswith("log_delivery.leader: must say which instance asks")


def test_the_room_that_is_asked_for_is_enough() -> None:
    (fault,) = faults(flags=(("cloud_logging.findings_log", "findings"),))
    least = fault.rpartition(" ")[2]
    assert load(None, {}, (("cloud_logging.findings_log", "findings"), ("budget.memory_bytes", least)))
    assert faults(flags=(("cloud_logging.findings_log", "findings"), ("budget.memory_bytes", str(int(least) - 1))))


def test_looks_and_canaries_cost() -> None:
    sets: tuple[dict[str, Any], ...] = (
        {},
        {"log_names": ("a",)},
        {"canary_log": "c"},
        {"canary_log": "c", "canary_every_seconds": 15.0},
    )
    costs = [predicted_cpu_ratio(Config(log_delivery=LogDelivery(leader="always", **more))) for more in sets]
    assert costs == sorted(set(costs))


def test_a_password_in_an_address_is_not_shown() -> None:
    (fault,) = faults(flags=(("cloud_logging.endpoint", f"app:{SECRET}@logging.googleapis.com"),))
    assert SECRET not in fault


# ---- addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9768", "127.0.0.1", 9768),
        ("0.0.0.0:0", "0.0.0.0", 0),
        ("localhost:80", "localhost", 80),
        ("[::1]:65535", "::1", 65535),
        ("[::]:1", "::", 1),
    ],
)
def test_an_address_is_host_and_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":", "9768", ":9768", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1: 1", "256.0.0.1:1",
     "example.org:80", "127.0.0.1:1x", "127.0.0.1:\u0661", "http://127.0.0.1:1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_address(text)


@given(text=st.text(alphabet=st.characters(), max_size=30) | st.from_regex(r"[\[\]:.0-9a-f]{0,20}", fullmatch=True))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535


# ---- the tree itself


@pytest.mark.parametrize(("section", "model"), list(sections()), ids=lambda item: item if isinstance(item, str) else "")
def test_every_setting_says_what_it_is(section: str, model: type[Section]) -> None:
    assert model.__doc__, section
    for name, field in model.model_fields.items():
        assert field.description, f"{section}.{name}"


# ---- databases


@pytest.mark.parametrize(
    ("targets", "word"),
    [
        (f"main=postgresql://app:{SECRET}@db/app", "must be env:VARIABLE or file:PATH"),
        (f"main=host=db password={SECRET}", "must be env:VARIABLE or file:PATH"),
        ("main=env:", "must be env:VARIABLE or file:PATH"),
        ("Main=env:URL", "is no name"),
        ("=env:URL", "is no name"),
        (",".join(f"d{n}=env:URL" for n in range(17)), "at most 16"),
    ],
)
def test_a_database_is_named_and_its_dsn_stands_elsewhere(targets: str, word: str) -> None:
    (fault,) = faults(flags=(("postgres.targets", targets),))
    assert word in fault
    assert SECRET not in fault


def test_a_slot_of_a_database_ends_before_the_next() -> None:
    flags = (("postgres.targets", "main=env:URL"), ("postgres.timeout_seconds", "10"))
    (fault,) = faults(flags=flags)
    assert fault.startswith("postgres.timeout_seconds = 10: must be below every_seconds = 10")
    assert load(None, {}, flags[1:]).postgres.timeout_seconds == 10, "nobody is asked, so nothing is late"


def test_each_database_costs() -> None:
    one, two = (load(None, {}, [("postgres.targets", text)]) for text in ("a=env:A", "a=env:A,b=env:B"))
    assert predicted_cpu_ratio(Config()) < predicted_cpu_ratio(one) < predicted_cpu_ratio(two)


def test_processes_are_watched_and_paid_for_where_something_tells_which_are_the_apps() -> None:
    nothing = Config(connections=Connections(ports=()))
    named = Config(connections=Connections(ports=()), app=App(process="web"))
    watched = [are_watched(Context(config.sections)) for config in (nothing, named, Config())]
    assert watched == [False, True, True]
    assert predicted_cpu_ratio(nothing) < predicted_cpu_ratio(named) < predicted_cpu_ratio(Config())


@pytest.mark.parametrize(
    ("flag", "missing"),
    [
        (("webhook.body", "slack"), "webhook.url"),
        (("alertmanager.labels", "team=shop"), "alertmanager.urls"),
    ],
)
def test_what_is_of_no_use_alone_is_a_fault(flag: tuple[str, str], missing: str) -> None:
    (fault,) = faults(flags=(flag,))
    assert fault.startswith(f"{missing}: must be set")


def test_pagerduty_needs_the_place_of_its_routing_key() -> None:
    (fault,) = faults(flags=(("webhook.url", "env:URL"), ("webhook.body", "pagerduty")))
    assert fault.startswith("webhook.secret: must say where the routing key stands")


def test_no_value_of_a_webhook_is_shown() -> None:
    told = faults(
        flags=(("webhook.url", f"https://a/{SECRET}"), ("webhook.token", SECRET), ("webhook.headers", f"A={SECRET}"))
    )
    assert len(told) == 3
    assert SECRET not in "".join(told)


def test_nobody_is_told_unless_the_settings_say_so() -> None:
    assert not anybody_told(load(None, {}, ()))
    for flag in (
        ("otlp.enabled", "true"),
        ("webhook.url", "env:A"),
        ("alertmanager.urls", "http://a"),
        ("alerts.kubernetes_events", "1"),
    ):
        assert anybody_told(load(None, {}, (flag,)))


def test_what_others_are_told_by_and_is_not_here_is_remarked_without_being_a_fault() -> None:
    config = load(
        None, {}, (("otlp.enabled", "true"), ("webhook.url", "env:HOOK"), ("webhook.headers", "X-A=file:/nowhere"))
    )
    environ = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TIMEOUT": "10"}
    told = "\n".join(remarks(config, environ))
    for each in ("OTEL_EXPORTER_OTLP_PROTOCOL = 'grpc': must be http/protobuf", "webhook.url = env:HOOK: empty", "webhook.X-A = file:/nowhere",
                 "OTEL_EXPORTER_OTLP_TIMEOUT = '10': must be milliseconds"):  # fmt: skip
        assert each in told
    assert not list(remarks(config, {"HOOK": "http://a"}))[1:]


def test_events_that_kubectl_describe_would_not_find_are_remarked() -> None:
    config = load(None, {}, (("alerts.kubernetes_events", "true"),))
    (told,) = remarks(config, {"POD_NAME": "shop-1"})
    assert told.startswith("alerts.kubernetes_events: POD_UID is not set")
    assert not list(remarks(config, {"POD_NAME": "shop-1", "POD_UID": "u"}))
    assert not list(remarks(load(None, {}, ()), {}))
