"""References to secrets: found in what a file says, and in nothing else."""

import copy
from dataclasses import asdict

import pytest

from toolway.config.loader import parse_config
from toolway.config.schema import Server
from toolway.config.secret_refs import SecretRef, SecretTemplate, split_secret_refs
from toolway.config.secrets import list_secret_refs, substitute_secrets
from toolway.config.server_entry import parse_entry
from toolway.errors import ConfigError

CANARY = "canary-a41f"
TOKEN = SecretRef("keyring", "gh.TOKEN")


def test_references_are_kept_until_substituted():
    server = parse_entry(
        {
            "url": "https://x.example/mcp?key=${keyring:gh.TOKEN}",
            "headers": {
                "Authorization": "Bearer ${keyring:gh.TOKEN}",
                "X": "${file:~/x}",
                "Y": "${command:pass show y}",
            },
        },
        {},
    )
    wanted = (SecretRef("file", "~/x"), SecretRef("command", "pass show y"), TOKEN)
    assert set(list_secret_refs(server)) == set(wanted)
    assert server.headers["Authorization"] == "Bearer ${keyring:gh.TOKEN}"
    done = substitute_secrets(server, dict(zip(wanted, ("vx", "vy", "a&b"), strict=True)))
    assert done.headers == {"Authorization": "Bearer a&b", "X": "vx", "Y": "vy"}
    assert done.url == "https://x.example/mcp?key=a%26b"  # a value cannot leave its place in an address
    assert list_secret_refs(done) == ()


def test_oauth_secret_may_be_a_reference():
    written = {"grant": "client_credentials", "issuer": "https://as.example", "clientId": "me", "type": "oauth"}
    server = parse_entry({"url": "https://x.example", "auth": {**written, "clientSecret": "${keyring:gh.TOKEN}"}}, {})
    done = substitute_secrets(server, {TOKEN: CANARY})
    assert done.auth is not None and done.auth.client_secret == CANARY
    assert CANARY not in repr(done)


@pytest.mark.attack("held-64")
def test_variable_value_is_not_a_reference():
    variables = {"EVIL": "${command:touch /tmp/x}", "B": "${keyring:gh.TOKEN}"}
    server = parse_entry({"command": "x", "env": {"A": "${EVIL}", "B": "${B}", "C": "${MISSING:-${B}}"}}, variables)
    assert list_secret_refs(server) == ()
    assert server.env["A"] == "${command:touch /tmp/x}"


def test_reference_and_variable_may_share_a_value():
    server = parse_entry({"command": "x", "env": {"A": "${USER}:${keyring:gh.TOKEN}@${HOST:-h}"}}, {"USER": "me"})
    assert substitute_secrets(server, {TOKEN: "pw"}).env == {"A": "me:pw@h"}


def test_server_made_in_code_has_no_references():
    assert list_secret_refs(Server(command="x", env={"A": "${keyring:gh.TOKEN}"})) == ()


@pytest.mark.parametrize(
    "where", [{"args": ["--token", "${keyring:gh.TOKEN}"]}, {"command": "${file:/x}"}, {"cwd": "${file:/x}"}]
)
def test_secret_in_argument_is_rejected(where):
    with pytest.raises(ConfigError) as caught:
        parse_entry({"command": "x", **where}, {})
    assert caught.value.code == "E-SECRETS-ARGUMENT"


@pytest.mark.parametrize(
    "text", ["${keyring:}", "${keyring:a b}", "${file:}", "${file:relative/path}", "${command:}", "${command:a 'b}"]
)
def test_invalid_reference_affects_only_its_entry(text):
    loaded = parse_config(
        f'{{"mcpServers": {{"bad": {{"command": "x", "env": {{"A": "{text}"}}}}, "ok": {{"command": "x"}}}}}}'
    )
    assert list(loaded.servers) == ["ok"]
    assert [problem.code for problem in loaded.issues] == ["E-CONFIG-REFERENCE"]


@pytest.mark.parametrize("value", ["a\r\nX-Other: 1", "a\nb", "a\0b"])
def test_secret_with_line_break_is_rejected_unprinted(value):
    server = parse_entry({"url": "https://x.example", "headers": {"A": "${keyring:gh.TOKEN}"}}, {})
    with pytest.raises(ConfigError) as caught:
        substitute_secrets(server, {TOKEN: value})
    assert value not in str(caught.value)


def test_validation_error_does_not_repeat_secret():
    auth = {
        "type": "oauth",
        "issuer": "https://as.example",
        "clientId": "me",
        "clientMetadataUrl": "${keyring:gh.TOKEN}",
    }
    with pytest.raises(ConfigError) as caught:
        substitute_secrets(_with_metadata_url(auth), {TOKEN: CANARY})
    assert caught.value.code == "E-CONFIG-AUTH"
    assert CANARY not in str(caught.value)


def _with_metadata_url(auth):
    server = parse_entry(
        {"url": "https://x.example", "auth": {**auth, "clientMetadataUrl": "https://x.example/me"}}, {}
    )
    assert server.auth is not None
    object.__setattr__(server.auth, "client_metadata_url", SecretTemplate((TOKEN,)))  # so far it looked like an address
    return server


def test_copy_keeps_unresolved_references():
    text = SecretTemplate(("a", TOKEN))
    assert copy.deepcopy(text).references == (TOKEN,)
    copied = asdict(Server(command="x", env={"A": text}))["env"]["A"]
    assert copied.references == (TOKEN,)


def test_text_without_references_is_one_part():
    assert split_secret_refs("a ${B} c") == ("a ${B} c",)
    assert split_secret_refs("") == ()


def test_escaped_dollar_is_not_a_reference():
    assert split_secret_refs("$${keyring:x}") == ("$${keyring:x}",)
