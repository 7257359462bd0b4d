"""An agent that is open to a network: TLS, a login, several addresses, and the command that asks such an agent."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.commands.exits import BAD_CONFIG, CANNOT_TELL, FINDINGS, HEALTHY, UNAVAILABLE
from tests.integration.conftest import ROOT, START_SECONDS, RunningAgent, Start, eventually
from tests.unit.exporters.web import PASSWORD, TOKEN, certificate, trusting, web_config

#: No token: it could be guessed.
SHORT = "0123456789"
PAIR = 'cert_file = "tls.crt"\nkey_file = "tls.key"\n'


def status(port: int, path: str, directory: Path, token: str = "") -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=trusting(directory / "tls.crt"))
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


def ports(agent: RunningAgent) -> list[int]:
    found = eventually(lambda: re.findall(r"https://[^/\s]*:(\d+)(?=/report|[, ]|\"|$)", agent.stderr), START_SECONDS)
    return [int(port) for port in found]


@pytest.mark.core
def test_an_agent_with_a_web_configuration_tells_only_who_logs_in_on_each_of_its_addresses(
    start: Start, tmp_path: Path
) -> None:
    certificate(tmp_path)
    path = web_config(tmp_path, tls=PAIR)
    agent = start("--listen", "127.0.0.2:0", "--web-config", str(path), wait=False)
    first, *_, last = ports(agent)
    assert first != last
    assert [status(first, path, tmp_path) for path in ("/livez", "/metrics", "/")] == [200, 401, 401]
    assert status(first, "/metrics", tmp_path, TOKEN) == 200

    def told(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "stallscope", "report", f"https://127.0.0.1:{first}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)

    ca = ("--ca-file", str(tmp_path / "tls.crt"))
    refused = told(*ca)
    assert refused.returncode == UNAVAILABLE
    assert "--login-file" in refused.stderr
    (tmp_path / "user").write_text(f"ann:{PASSWORD}\n")
    for name in ("token", "user"):
        answer = told(*ca, "--login-file", str(tmp_path / name))
        assert answer.returncode in (HEALTHY, FINDINGS, CANNOT_TELL), answer.stderr
    assert "certificate" in told("--login-file", str(tmp_path / "token")).stderr.lower()
    assert agent.end() == 0
    assert not any(secret in agent.stdout + agent.stderr for secret in (TOKEN, PASSWORD))


def test_what_is_wrong_with_addresses_and_web_configuration_is_told_at_once_and_nothing_is_started(
    agent: RunningAgent, tmp_path: Path
) -> None:
    path = web_config(tmp_path, users='ann = "in-plain-text"', token=SHORT)
    words = ["--listen", f"127.0.0.1:{agent.port}", "--listen", "192.0.2.1:1", "--web-config", str(path)]
    command = [sys.executable, "-m", "stallscope", "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == BAD_CONFIG
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    for word in (f"127.0.0.1:{agent.port}: ", "192.0.2.1:1: ", "basic_auth_users.ann", "bearer_token_file"):
        assert word in done.stderr
    assert "in-plain-text" not in done.stderr
    assert SHORT not in done.stderr


def test_check_config_says_what_is_wrong_with_the_web_configuration_here(tmp_path: Path) -> None:
    path = web_config(tmp_path, users='ann = "in-plain-text"', token=SHORT)
    command = [sys.executable, "-m", "stallscope", "check-config", "--set", f"http.web_config={path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == HEALTHY
    assert [line.endswith("(here)") for line in done.stderr.splitlines()] == [True, True]
    assert "in-plain-text" not in done.stderr
