import pytest

from toolway.config.schema import HealthCheck, Limits, RestartPolicy, Server, Timeout, Tls
from toolway.config.server_entry import parse_entry, parse_entry_with_issues, parse_inline
from toolway.errors import ConfigError


def problem(value):
    with pytest.raises(ConfigError) as caught:
        parse_entry(value, {})
    return caught.value


def warnings(value, variables=None):
    return [p.message for p in parse_entry_with_issues(value, variables or {})[1]]


def test_stdio_entry_is_parsed():
    server = parse_entry(
        {"type": "stdio", "command": "npx", "args": ["-y", "pkg", 8080], "env": {"A": "1", "N": 2, "T": True}}
    )
    assert server == Server(command="npx", args=("-y", "pkg", "8080"), env={"A": "1", "N": "2", "T": "true"})


@pytest.mark.parametrize("key", ["url", "httpUrl", "serverUrl", "uri"])
def test_url_is_accepted_under_every_key(key):
    assert parse_entry({key: "https://x/mcp", "headers": {"X": "1"}}) == Server(url="https://x/mcp", headers={"X": "1"})


@pytest.mark.parametrize("key", ["type", "transport"])
@pytest.mark.parametrize("spelling", ["http", "streamable-http", "streamableHttp", "streamable_http", "remote", "HTTP"])
def test_http_in_every_spelling(key, spelling):
    assert parse_entry({key: spelling, "url": "https://x/mcp"}).transport == "http"


@pytest.mark.parametrize("spelling", ["stdio", "local", "STDIO"])
def test_stdio_in_every_spelling(spelling):
    assert parse_entry({"type": spelling, "command": "x"}).transport == "stdio"


@pytest.mark.parametrize("spelling", ["sse", "SSE"])
def test_sse_in_every_spelling(spelling):
    assert parse_entry({"type": spelling, "url": "https://x/sse"}).transport == "sse"
    assert "an sse server needs a url" in problem({"type": spelling, "command": "x"}).message


@pytest.mark.promise("D4")
@pytest.mark.parametrize("spelling", [None, "ws", "websocket", "WebSocket", "web-socket"])
@pytest.mark.parametrize("url", ["ws://127.0.0.1:9/mcp", "wss://x/mcp"])
def test_websocket_is_recognized_by_url_with_or_without_type(spelling, url):
    entry = {"url": url} if spelling is None else {"url": url, "type": spelling}
    server = parse_entry(entry)
    assert (server.transport, server.url) == ("websocket", url)
    assert server.http_url == url.replace("ws", "http", 1)
    assert parse_inline(url).transport == "websocket"


def test_conflicting_type_and_url_are_rejected():
    for entry in (
        {"type": "ws", "url": "https://x/mcp"},
        {"type": "websocket", "command": "x"},
        {"type": "http", "url": "wss://x/mcp"},
        {"type": "sse", "url": "ws://x/mcp"},
    ):
        assert problem(entry).code == "E-CONFIG-URL", entry


@pytest.mark.promise("D16")
def test_tls_files_expand_variables_and_home(tmp_path):
    files = {"caFile": "~/ca.pem", "certFile": "${DIR}/c.pem", "keyFile": "/k.pem", "keyPassword": "${PASS}"}
    variables = {"HOME": str(tmp_path), "DIR": "/d", "PASS": "hidden"}
    server, issues = parse_entry_with_issues({"url": "https://x/mcp", "tls": files}, variables)
    assert server.tls == Tls(f"{tmp_path}/ca.pem", "/d/c.pem", "/k.pem", "hidden")
    assert not issues
    assert "hidden" not in repr(server)


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"url": "https://x", "tls": {}}, "E-CONFIG-TLS"),
        ({"url": "https://x", "tls": {"keyFile": "k.pem"}}, "E-CONFIG-TLS"),
        ({"url": "https://x", "tls": {"caFile": "${file:/x}"}}, "E-CONFIG-TLS"),
        ({"command": "x", "tls": {"caFile": "ca.pem"}}, "E-CONFIG-TLS"),
        ({"url": "https://x", "tls": {"cafile": "ca.pem"}}, "E-CONFIG-KEY"),
        ({"url": "https://x", "tls": "ca.pem"}, "E-CONFIG-KEY"),
    ],
)
def test_invalid_tls_settings_are_rejected(entry, code):
    assert problem(entry).code == code


def test_unknown_type_error_lists_known_types():
    found = problem({"type": "carrier-pigeon", "url": "https://x"})
    assert (found.code, "stdio, http" in found.detail) == ("E-CONFIG-TYPE", True)


def test_type_must_match_command_or_url():
    assert "needs a command" in problem({"type": "stdio", "url": "https://x"}).message
    assert "needs a url" in problem({"type": "http", "command": "x"}).message
    assert problem({"command": "x", "url": "https://x"}).code == "E-CONFIG-SERVER"
    assert problem({}).code == "E-CONFIG-SERVER"
    assert "two addresses" in problem({"url": "https://x", "httpUrl": "https://y"}).message


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(20000, 20.0), (1500.5, 1.5005), ("20s", 20.0), ("500ms", 0.5), ("2m", 120.0), ("1.5 s", 1.5)],
)
def test_duration_is_milliseconds_or_text_with_unit(written, seconds):
    assert parse_entry({"command": "x", "timeout": written}).timeout.total == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", [True, "20", "20 parsecs", -1, [], 0, float("inf"), "-1s", 10**400, "9" * 400 + "s"]
)
def test_invalid_duration_is_rejected(written):
    assert problem({"command": "x", "timeout": written}).code == "E-CONFIG-KEY"


def test_suspiciously_short_timeout_is_reported():
    assert warnings({"command": "x", "timeout": 30}) == ["timeout is 30 milliseconds"]
    assert warnings({"command": "x", "health": {"timeout": 2}}) == ["health.timeout is 2 milliseconds"]
    assert warnings({"command": "x", "health": {"timeout": "2s", "interval": 0}}) == []
    assert warnings({"command": "x", "timeout": 30000}) == []
    assert warnings({"command": "x", "timeout": "30ms"}) == []


def test_timeout_over_maximum_is_capped_and_reported():
    server, problems = parse_entry_with_issues({"command": "x", "timeout": "2h"}, {})
    assert server.timeout.total == 900
    assert len(problems) == 1


def test_all_toolway_keys_are_parsed():
    server = parse_entry(
        {
            "command": "x",
            "startTimeout": "90s",
            "connectTimeout": 2000,
            "maxRestarts": 9,
            "disabled": True,
            "lazy": True,
            "idleTimeout": "5m",
            "instances": 3,
            "nodeLabels": ["zone=eu", "gpu", "gpu"],
            "keepAliveInterval": 0,
            "era": "legacy",
            "envPolicy": "inherit",
            "limits": {
                "maxConcurrent": 2,
                "maxQueued": 0,
                "maxMessageBytes": 4096,
                "stderrBytes": 10,
                "compression": True,
            },
        }
    )
    assert server == Server(
        command="x",
        timeout=Timeout(start=90, connect=2),
        restart=RestartPolicy(max_restarts=9),
        enabled=False,
        lazy=True,
        idle_timeout=300,
        instances=3,
        node_labels=("gpu", "zone=eu"),
        health=HealthCheck(interval=0),
        era="legacy",
        env_policy="inherit",
        limits=Limits(2, 0, 4096, 10, True),
    )
    assert parse_entry({"command": "x", "env_policy": "none"}).env_policy == "none"
    assert parse_entry({"command": "x", "enabled": False}).enabled is False
    assert parse_entry({"command": "x", "enabled": True, "disabled": True}).enabled is False


def test_null_value_is_the_same_as_missing_key():
    assert parse_entry({"command": "x", "args": None, "env": None, "timeout": None, "limits": None}) == Server(
        command="x"
    )


@pytest.mark.parametrize(
    "value",
    [
        {"command": 12},
        {"command": "x", "args": "-y"},
        {"command": "x", "args": [None]},
        {"command": "x", "env": ["A=1"]},
        {"command": "x", "env": {"A": None}},
        {"command": "x", "enabled": "yes"},
        {"command": "x", "maxRestarts": -1},
        {"command": "x", "maxRestarts": True},
        {"command": "x", "era": "stone"},
        {"command": "x", "instances": 0},
        {"command": "x", "instances": 65},
        {"command": "x", "nodeLabels": "gpu"},
        {"command": "x", "nodeLabels": ["gpu, large"]},
        {"command": "x", "nodeLabels": [f"label-{number}" for number in range(33)]},
        {"command": "x", "limits": 5},
        {"command": "x", "limits": {"maxConcurrent": 0}},
        [],
        None,
        7,
    ],
)
def test_value_of_wrong_type_names_the_key(value):
    found = problem(value)
    assert found.code == "E-CONFIG-KEY"
    assert found.message
    assert found.detail


def test_error_never_shows_the_value():
    found = problem({"command": "x", "env": {"TOKEN": ["s3cret"]}})
    assert "s3cret" not in str(found)
    assert "env.TOKEN" in found.message


def test_unknown_keys_are_kept():
    server = parse_entry({"command": "x", "autoApprove": ["a"], "oauth": {"clientId": "c"}, "limits": {"odd": 1}})
    assert server.extras == {"autoApprove": ["a"], "oauth": {"clientId": "c"}, "limits": {"odd": 1}}


def test_misspelled_and_foreign_keys_are_reported():
    assert warnings({"command": "x", "Timeout": 5, "autoApprove": [], "headersHelper": "h", "maxRetries": 3}) == [
        "unknown key 'Timeout'",
        "key 'autoApprove' has no effect",
        "key 'headersHelper' has no effect",
    ]
    assert warnings({"command": "x", "limits": {"maxConcurent": 1}}) == ["unknown key limits.maxConcurent"]


def test_variables_are_expanded_in_every_field():
    variables = {"HOME": "/home/me", "T": "t", "HOST": "h.example"}
    stdio = parse_entry(
        {"command": "~/bin/${T}", "args": ["${T}"], "env": {"K": "${env:T}"}, "cwd": "~/${T}"}, variables
    )
    assert (stdio.command, stdio.args, stdio.env, stdio.cwd) == ("/home/me/bin/t", ("t",), {"K": "t"}, "/home/me/t")
    http = parse_entry({"url": "${BASE:-https://h}/mcp", "headers": {"Authorization": "Bearer ${T}"}}, variables)
    assert (http.url, http.headers) == ("https://h/mcp", {"Authorization": "Bearer t"})


def test_unset_variable_is_reported_and_server_kept():
    server, problems = parse_entry_with_issues({"command": "x", "env": {"TOKEN": "${GITHUB_TOKEN}"}}, {})
    assert server.env == {"TOKEN": "${GITHUB_TOKEN}"}
    assert [(p.message, p.code, p.severity) for p in problems] == [
        ("the variable GITHUB_TOKEN is not set", "E-CONFIG-VARIABLE", "warning")
    ]
    assert "env.TOKEN" in problems[0].detail


def test_long_key_is_shortened_in_issues():
    _, problems = parse_entry_with_issues({"command": "x", "env": {"K" * 5000: "${A}${B}"}}, {})
    assert [len(p.detail) < 200 for p in problems] == [True, True]


def test_inline_server_is_url_or_command_line():
    assert parse_inline("https://x/mcp") == Server(url="https://x/mcp")
    assert parse_inline("npx -y 'a b'") == Server(command="npx", args=("-y", "a b"))
    for bad in ("", "  ", "npx 'open", "x" * 20_000):
        with pytest.raises(ConfigError):
            parse_inline(bad)
