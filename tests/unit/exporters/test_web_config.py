"""The web configuration: every fault at once, and no part of a secret in any of them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from exporters.web_config import WebConfigError, load_web_config
from tests.unit.exporters.web import HASH, TOKEN, certificate, web_config

PAIR = 'cert_file = "tls.crt"\nkey_file = "tls.key"\n'


def faults(path: Path) -> tuple[str, ...]:
    with pytest.raises(WebConfigError) as caught:
        load_web_config(path)
    return caught.value.faults


def test_all_that_it_can_say_is_understood_and_paths_are_taken_from_where_it_is(tmp_path: Path) -> None:
    certificate(tmp_path)
    tls = f'{PAIR}client_ca_file = "tls.crt"\nclient_auth_type = "RequireAndVerifyClientCert"\nmin_version = "TLS13"'
    found = load_web_config(web_config(tmp_path, tls=tls))
    assert found.tls is not None
    assert found.tls.verify_mode == ssl.CERT_REQUIRED
    assert found.tls.minimum_version == ssl.TLSVersion.TLSv1_3
    assert (list(found.users), len(found.tokens), found.asks) == (["ann"], 1, True)
    assert {file.name for file in found.files} == {"web.toml", "tls.crt", "tls.key", "token"}
    assert TOKEN not in repr(found)
    assert HASH not in repr(found)


def test_by_itself_tls_is_1_2_and_asks_nobody_for_a_certificate(tmp_path: Path) -> None:
    certificate(tmp_path)
    found = load_web_config(web_config(tmp_path, tls=PAIR, users="", token=""))
    assert found.tls is not None
    assert (found.tls.minimum_version, found.tls.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_NONE)
    assert not found.asks


#: What stands in the file, and what a sentence about it must name.
WRONG = {
    "": ("asks for nothing",),
    "bearer_token_file = 3": ("bearer_token_file: must be the path",),
    'bearer_token_file = "none"': ("bearer_token_file", "No such file"),
    'bearer_token_file = "short"': ("bearer_token_file", "16 or more"),
    'bearer_token_file = "many"': ("1 to 16 tokens",),
    "basic_auth_users = 3": ("basic_auth_users: must be a table",),
    '[basic_auth_users]\nann = "secret-in-plain"': ("basic_auth_users.ann", "(not shown)", "htpasswd"),
    f'[basic_auth_users]\nann = "{HASH.replace("$04$", "$15$")}"': ("cost of 4 to 14",),
    f'[basic_auth_users]\n"a:b" = "{HASH}"': ("without a colon",),
    "[tls_server_config]\nmin_version = 'TLS12'": ("cert_file: must be set",),
    f"[tls_server_config]\n{PAIR}": ("tls.crt", "No such file"),
    f"[tls_server_config]\n{PAIR}min_version = 'TLS10'": ("min_version = 'TLS10'", "TLS12, TLS13"),
    f"[tls_server_config]\n{PAIR}client_auth_type = 'RequireAnyClientCert'": ("client_auth_type", "NoClientCert"),
    f"[tls_server_config]\n{PAIR}client_ca_file = 'ca'": ("go together",),
    f"[tls_server_config]\n{PAIR}cipher_suites = []": ("cipher_suites", "no such key", "cert_file"),
    "tls_server_confg = {}": ("tls_server_confg", "no such key", "tls_server_config"),
    "[": ("not TOML",),
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))  # a hash is salted: workers would not agree on names
def test_what_cannot_be_meant_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret\n")
    (tmp_path / "many").write_text(f"{TOKEN}\n" * 17)
    path = tmp_path / "web.toml"
    path.write_text(text)
    (told,) = [fault for fault in faults(path) if WRONG[text][0] in fault]
    assert all(word in told for word in WRONG[text])
    assert "secret" not in told


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "web.toml"
    path.write_text(
        'bearer_token_file = "none"\nx = 1\n[tls_server_config]\nmin_version = "SSL3"\n[basic_auth_users]\na = "b"\nb = 3'
    )
    assert len(faults(path)) == 7


def test_a_key_of_another_certificate_and_a_file_that_is_none_are_named(tmp_path: Path) -> None:
    certificate(tmp_path)
    certificate(tmp_path, "other")
    (fault,) = faults(web_config(tmp_path, tls='cert_file = "tls.crt"\nkey_file = "other.key"'))
    assert "the key is not that of the certificate" in fault
    (tmp_path / "tls.crt").write_text("nonsense")
    (fault,) = faults(web_config(tmp_path, tls=PAIR))
    assert "cert_file" in fault
