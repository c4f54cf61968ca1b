import pytest

from toolway.config.masking import build_masker, mask_value
from toolway.config.schema import Server
from toolway.config.server_entry import parse_entry
from toolway.secrets import remember_secret


def test_env_secrets_are_masked_by_name_and_headers_always():
    mask = build_masker(
        [
            Server(command="x", env={"GITHUB_TOKEN": "ghp_12345", "DATA": "/srv/data", "API_KEY": "short"}),
            Server(url="https://x", headers={"Authorization": "Bearer abcdef123"}),
        ]
    )
    assert mask("ghp_12345 at /srv/data") == "*** at /srv/data"
    assert mask("sent Bearer abcdef123, got abcdef123") == "sent ***, got ***"
    assert mask("a short word") == "a short word"


def test_text_without_secrets_is_unchanged():
    assert build_masker([Server(command="x")])("text") == "text"


def test_secrets_in_arguments_and_urls_are_masked():
    mask = build_masker(
        [
            Server(
                command="x", args=("--api-key", "key-of-one", "--token=token-of-two", "-e", "A_TOKEN=token-of-three")
            ),
            Server(command="x", args=("--header", "Authorization: Bearer token-of-four", "--verbose", "harmless-word")),
            Server(url="https://me:password-five@x.example/mcp?api_key=query-of-six&v=harmless-value"),
        ]
    )
    secrets = ("key-of-one", "token-of-two", "token-of-three", "token-of-four", "password-five", "query-of-six")
    assert [secret for secret in secrets if mask(secret) != "***"] == []
    assert mask("harmless-word harmless-value") == "harmless-word harmless-value"


def test_resolved_secret_is_masked_everywhere():
    mask = build_masker([])
    assert mask("fetched-value-4711") == "fetched-value-4711"
    remember_secret("fetched-value-4711")
    assert mask("fetched-value-4711") == "***"


def test_secret_reference_is_not_masked():
    server = parse_entry({"command": "x", "env": {"A_TOKEN": "${keyring:a.TOKEN}"}}, {})
    assert build_masker([server])("${keyring:a.TOKEN}") == "${keyring:a.TOKEN}"


def test_secrets_in_own_environment_are_masked(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://me:password-of-proxy@proxy.example:3128")
    monkeypatch.setenv("TOOLWAY_TOKEN", "token-of-the-gateway")
    mask = build_masker([])
    assert mask("via http://me:password-of-proxy@proxy.example:3128") == "via http://me:***@proxy.example:3128"
    assert mask("token-of-the-gateway") == "***"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ({"env": {"A_TOKEN": "plain-token", "LEVEL": "debug"}}, {"env": {"A_TOKEN": "***", "LEVEL": "debug"}}),
        ({"env": {"A_TOKEN": "${VAR}", "B_KEY": "x${VAR}"}}, {"env": {"A_TOKEN": "${VAR}", "B_KEY": "***${VAR}"}}),
        (
            {"headers": {"Authorization": "Bearer ${VAR}", "X-Anything": "plain", "Accept": "*/*"}},
            {"headers": {"Authorization": "Bearer ${VAR}", "X-Anything": "***", "Accept": "*/*"}},
        ),
        ({"headers": {"Authorization": "Bearer plain"}}, {"headers": {"Authorization": "***"}}),
        ({"args": ["--api-key", "plain-token", 5]}, {"args": ["--api-key", "***", 5]}),
        (
            {"auth": {"clientSecret": "plain-token", "clientId": "me"}},
            {"auth": {"clientSecret": "***", "clientId": "me"}},
        ),
        ({"timeout": 5, "enabled": True, "x": None}, {"timeout": 5, "enabled": True, "x": None}),
        ({"url": "https://x.example/?token=plain-token&a=1"}, {"url": "https://x.example/?token=***&a=1"}),
    ],
)
def test_entry_is_shown_without_secrets(written, shown):
    assert mask_value(written) == shown
