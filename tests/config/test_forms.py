"""Configuration forms of other programs: read as they are, every key in force or named."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from toolway.config.loader import LoadedConfig, load_file, parse_config
from toolway.config.schema import ConfigIssue, Server
from toolway.config.server_entry import parse_entry_with_issues
from toolway.errors import ConfigError
from toolway.hub.hub import Hub
from toolway.parts.openapi.settings import settings_of

FORMS = Path(__file__).parent / "forms"
VARIABLES = {"GITHUB_TOKEN": "g", "DOCS_TOKEN": "d", "SMTP_PASSWORD": "s"}


def load(name: str, variables: dict[str, str] | None = None) -> LoadedConfig:
    return load_file(FORMS / f"{name}.json", VARIABLES if variables is None else variables)


def named(issues: tuple[ConfigIssue, ...] | list[ConfigIssue]) -> str:
    return " ".join(f"{issue.message} {issue.detail}" for issue in issues)


def keys_of(value: Any) -> list[str]:
    """Return the keys of a file that describe servers or the file: not those of env, headers and documents."""
    if isinstance(value, list):
        return [key for each in value if isinstance(each, dict) for key in keys_of(each)]
    return [key for name, each in value.items() for key in (name, *(keys_of(each) if is_object(name, each) else ()))]


def is_object(name: str, value: Any) -> bool:
    return name not in ("env", "headers") and isinstance(value, dict | list)


@pytest.mark.parametrize("file", sorted(FORMS.glob("*.json")), ids=lambda file: file.stem)
def test_every_key_is_applied_or_reported(file: Path) -> None:
    """A key is in force if the configuration without it differs, or has another issue."""
    text = file.read_text(encoding="utf-8")
    whole = parse_config(text, "f.json", VARIABLES)
    assert whole.servers or whole.issues
    implied = {"type", "transport", "enabled", "version", "name"}  # they say what the other keys say
    defaults = {"backoffMultiplier", "timeout", "in"}  # their values in the forms are the defaults
    for key in set(keys_of(json.loads(text))) - implied - defaults:
        try:
            changed = parse_config(json.dumps(without(json.loads(text), key)), "f.json", VARIABLES)
        except ConfigError:
            continue  # nothing works without it
        assert in_force(changed) != in_force(whole), key


def in_force(loaded: LoadedConfig) -> Any:
    servers = {name: replace(server, extras={}) for name, server in loaded.servers.items()}
    return servers, loaded.gateway, [msgspec.structs.replace(issue, line=None) for issue in loaded.issues]


def without(value: Any, key: str) -> Any:
    if isinstance(value, list):
        return [without(each, key) for each in value]
    if isinstance(value, dict):
        return {name: without(each, key) for name, each in value.items() if name != key}
    return value


@pytest.mark.promise("A6")
def test_resilient_client_form() -> None:
    loaded = load("resilient-client")
    github, docs = loaded.servers["github"], loaded.servers["docs"]
    assert (github.env, github.timeout.total, github.restart.max_restarts) == ({"GITHUB_TOKEN": "g"}, 30.0, 3)
    assert (docs.headers, docs.timeout.total, docs.transport) == ({"Authorization": "Bearer d"}, 60.0, "http")
    assert loaded.issues == ()


@pytest.mark.promise("B10", "B11", "B14", "B18")
@pytest.mark.parametrize(
    "form",
    ["list-under-servers", "bare-list", "mapping-with-endpoint", "mapping-with-url", "endpoint-with-default"],
)
def test_list_of_servers_with_names_and_endpoints(form: str) -> None:
    loaded = load(form)
    server = loaded.servers["github"]
    assert (server.url, server.timeout.total) == ("http://localhost:3001", 30.0)
    assert (server.retry.initial_backoff, server.retry.backoff_multiplier) == (1.0, 2.0)
    assert server.retry.max_attempts == 6
    assert all("github" in str(issue) or issue.line for issue in loaded.issues)


def test_endpoint_from_a_variable() -> None:
    loaded = load("endpoint-with-default", {"MCP_GITHUB_ENDPOINT": "https://github.example/mcp"})
    assert loaded.servers["github"].url == "https://github.example/mcp"


def test_hub_with_groups_and_five_transports() -> None:
    loaded = load("hub-with-groups")
    assert loaded.gateway.toolsets["dev"].tools == ("a.*", "c.*")
    assert loaded.servers["b"].health.interval == 60.0
    document = settings_of(loaded.servers["d"])
    assert [(key.name, key.kind) for key in document.credentials] == [("X-API-Key", "apiKey")]
    assert "'smartRouting' has no effect" in named(loaded.issues)


def test_duplicate_names_in_a_list_get_numbers() -> None:
    loaded = parse_config(
        '[{"name": "My Box", "url": "https://a"}, {"url": "https://b"}, {"name": "My Box", "command": "c"}]'
    )
    assert list(loaded.servers) == ["my-box", "server-2", "my-box-3"]


@pytest.mark.parametrize("text", ["[]", "[1]", '{"servers": ["npx x"]}', '{"mcpServers": 3}', "3"])
def test_invalid_server_list_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    assert caught.value.code == "E-CONFIG-SHAPE"


def test_groups_of_other_hosts_merge_with_toolsets() -> None:
    text = """{"mcpServers": {"My A": {"command": "x"}},
      "groups": [{"name": "Dev", "servers": ["My A", {"name": "c", "tools": ["x", "y"]}, 3], "maxSize": 1},
                 {"name": "server", "servers": []}, 1],
      "toolway": {"toolsets": {"ops": {"tools": ["*"]}}}}"""
    loaded = parse_config(text)
    assert {name: each.tools for name, each in loaded.gateway.toolsets.items()} == {
        "dev": ("my-a.*", "c.x", "c.y"),
        "ops": ("*",),
    }
    assert [issue.message for issue in loaded.issues if not issue.server] == [
        "group 'dev' lacks 1 of its servers",
        "unknown keys 'maxSize' of group 'dev'",
        "group 2 has no effect",
        "group 3 has no effect",
    ]


def test_two_spellings_of_one_key_are_rejected() -> None:
    with pytest.raises(ConfigError, match="set twice"):
        parse_entry_with_issues({"command": "x", "timeout": 1000, "timeoutMs": 2000}, {})
    with pytest.raises(ConfigError, match="two addresses"):
        parse_entry_with_issues({"url": "https://a", "endpoint": "https://b"}, {})


# -- keys without an effect -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key", ["headersHelper", "alwaysAllow", "autoApprove", "trust", "dev", "watchPaths", "oauth", "settings", "color"]
)
def test_key_without_effect_is_reported_with_hint(key: str) -> None:
    server, issues = parse_entry_with_issues({"command": "x", key: {"a": 1}}, {})
    assert server.extras == {key: {"a": 1}}
    assert [(issue.severity, repr(key) in issue.message, bool(issue.hint)) for issue in issues] == [
        ("warning", True, True)
    ]


@pytest.mark.parametrize("key", ["description", "icon", "version", "$schema", "_comment", "//", "name", "x-note"])
def test_descriptive_key_gives_no_warning(key: str) -> None:
    assert parse_entry_with_issues({"command": "x", key: "text"}, {})[1] == []


def test_kept_import_keys_are_reported_with_their_client() -> None:
    extras = {"cline": {"autoApprove": ["a"], "type": "streamableHttp", "description": "d"}, "zed": {"fancy": 1}}
    issues = parse_entry_with_issues({"command": "x", "extras": extras}, {})[1]
    assert [issue.message for issue in issues] == [
        "key 'autoApprove' of cline has no effect",
        "unknown key 'fancy' of zed",
    ]


def test_unknown_key_reports_are_bounded() -> None:
    issues = parse_entry_with_issues({"command": "x", **{f"odd{n}": n for n in range(10_000)}}, {})[1]
    assert len(issues) == 33 and issues[-1].message == "9968 more unknown keys"
    loaded = parse_config(json.dumps({"mcpServers": {}, **{f"odd{n}": n for n in range(10_000)}}))
    assert [issue.message.endswith("and 9992 more next to the servers") for issue in loaded.issues] == [True]


def test_root_keys_without_effect_are_reported() -> None:
    text = '{"$schema": "s", "mcpServers": {}, "inputs": [], "toolwai": {"timeout": 1}, "description": "d"}'
    found = {issue.message: issue.hint for issue in parse_config(text, "f.json").issues}
    assert "toolway secrets set" in found["key 'inputs' has no effect"]
    assert found["unknown key 'toolwai' next to the servers"] == "did you mean 'toolway'?"


@pytest.mark.promise("B14")
def test_config_warnings_reach_hub_and_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "toolway.config")
    entry = {"url": "https://x.example/mcp", "timeoutMs": 1000, "headersHelper": "h", "lazy": True, "description": "d"}
    hub = Hub({"x": entry}, catalog_storage=None)
    assert [(issue.server, issue.message) for issue in hub.config_issues] == [
        ("x", "key 'headersHelper' has no effect")
    ]
    assert "headersHelper" in caplog.text and "${command:…}" in caplog.text
    assert hub._core.servers.entries["x"].timeout.total == 1.0

    async def change() -> None:
        async with hub:
            await hub.add_server("y", {"url": "https://y.example/mcp", "lazy": True, "color": "red"})
            assert [issue.server for issue in hub.config_issues] == ["x", "y"]
            await hub.add_server("y", {"url": "https://y.example/mcp", "lazy": True}, replace=True)
            assert [issue.server for issue in hub.config_issues] == ["x"]

    asyncio.run(change())


@pytest.mark.parametrize(
    "config",
    [
        {"mcpServers": {"a": {"command": "x"}}},
        {"servers": [{"name": "a", "command": "x"}]},
        [{"name": "a", "command": "x"}],
        {"a": {"command": "x"}},
    ],
)
@pytest.mark.promise("B18")
def test_hub_accepts_each_form_as_a_value(config: Any) -> None:
    assert Hub(config, catalog_storage=None)._core.servers.entries == {"a": Server("x")}


def test_server_may_be_named_servers() -> None:
    assert Hub({"servers": {"command": "x"}}, catalog_storage=None)._core.servers.entries == {"servers": Server("x")}
