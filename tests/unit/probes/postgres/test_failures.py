"""Which reason the words of servers, poolers and libpq are reduced to."""

from __future__ import annotations

import pytest

from probes.postgres.failures import NEAREST, NotLetIn, at_login, failure
from probes.store.failures import OWN_FAULT

SECRET = "s3cr3t"  # noqa: S105


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('role "u" is not permitted to log in', "access"),
        ('permission denied for database "app"', "access"),
        ('database "app" is not currently accepting connections', "access"),
        ('no pg_hba.conf entry for host "10.0.0.1", user "u", database "app", SSL off', "access"),
        ('Peer authentication failed for user "u"', "authentication"),
        ('certificate authentication failed for user "u"', "authentication"),
        ('Cloud SQL IAM user authentication failed for user "u@x.iam"', "authentication"),
        ("SASL authentication failed", "authentication"),
        ("no such database: app", "authentication"),
        ('role "u" does not exist', "authentication"),
        ("no more connections allowed (max_client_conn)", "too many connections"),
        ("client connections exceeded (max_db_client_connections)", "too many connections"),
        ("Max client connections reached", "too many connections"),
        ("sorry, too many clients already", "too many connections"),
        ("server login has been failing, cached error: connect failed (server_login_retry)", "no server"),
        ("client_login_timeout (server down)", "no server"),
        ("pgbouncer cannot connect to server", "no server"),
        ("the database system is starting up", "starting"),
        ("the database system is not accepting connections\nDETAIL:  Hot standby mode is disabled.", "starting"),
    ],
)
def test_what_a_server_or_a_pooler_says_at_the_login(said: str, reason: str) -> None:
    assert at_login(f"FATAL:  {said}\n").reason == reason


@pytest.mark.parametrize(
    "said",
    [
        "FATAL:  Feature not supported: RDS Proxy currently doesn\u2019t support command-line options.\n",
        f'ВАЖНО:  пользователь "{SECRET}" не прошёл проверку подлинности\n',
        f'connection to server at "db" (10.0.0.1), port 5432 failed: 致命错误:  用户 "{SECRET}" Password 认证失败\n',
    ],
)
def test_a_server_that_answers_in_unknown_words_is_there_and_does_not_let_the_agent_in(said: str) -> None:
    fault = at_login(said)
    assert isinstance(fault, NotLetIn)
    assert fault.reason in OWN_FAULT
    assert SECRET not in fault.because + fault.remedy


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("SSL error: unexpected eof while reading\n", "closed"),
        ("SSL connection has been closed unexpectedly\n", "closed"),
        ("SSL SYSCALL error: EOF detected\n", "closed"),
        ("SSL SYSCALL error: Connection reset by peer\n", "closed"),
        ("SSL SYSCALL error: Broken pipe\n", "closed"),
        ("SSL SYSCALL error: Connection timed out\n", "timeout"),
        ("FATAL:  terminating connection due to administrator command\nSSL error: unexpected eof while reading\n", "closed"),
        ("FATAL:  the database system is shutting down\nSSL connection has been closed unexpectedly\n", "starting"),
        ("SSL error: certificate verify failed\n", "tls"),
        ("SSL error: tlsv13 alert certificate required\n", "tls"),
        ("SSL error: tlsv1 alert unknown ca\n", "tls"),
        ("SSL error: wrong version number\n", "tls"),
        ("server does not support SSL, but SSL was required\n", "tls"),
        ("received invalid response to SSL negotiation: H\n", "tls"),
        ("FATAL:  SSL required\n", "tls"),
    ],
)  # fmt: skip
def test_the_end_of_an_encrypted_connection_is_no_fault_of_its_encryption(said: str, reason: str) -> None:
    assert failure(said).reason == at_login(said).reason == reason
    assert (reason in NEAREST) is (reason != "tls"), "the next host may be up"


def test_words_that_no_server_has_said_are_no_answer() -> None:
    assert at_login("expected authentication request from server, but received H\n").reason == "other"


def test_an_open_session_that_the_server_ends_in_unknown_words_is_no_refused_login() -> None:
    assert failure("FATAL:  something new\n").reason == "other"
