"""What an entry says about calls."""

from __future__ import annotations

import pytest

from toolway.config.class_fields import field_names
from toolway.config.policy_entry import camel_case
from toolway.config.schema import HealthCheck, RestartPolicy, RetryPolicy, ToolSettings
from toolway.config.server_entry import parse_entry, parse_entry_with_issues
from toolway.errors import ConfigError
from toolway.types import Effect


def test_flat_retry_keys_are_parsed() -> None:
    server = parse_entry({"command": "x", "maxRetries": 1, "retryDelayMs": 200, "backoffMultiplier": 3})
    assert server.retry == RetryPolicy(max_attempts=2, initial_backoff=0.2, backoff_multiplier=3.0)
    assert parse_entry({"command": "x", "maxRetries": 0}).retry.max_attempts == 1
    assert parse_entry({"command": "x"}).retry == RetryPolicy()


@pytest.mark.user_trial("5")
def test_retries_up_to_20_are_accepted() -> None:
    server, issues = parse_entry_with_issues({"command": "x", "maxRetries": 20}, {})
    assert (server.retry.max_attempts, issues) == (21, [])
    assert RetryPolicy(max_attempts=21).max_attempts == 21
    with pytest.raises(ConfigError, match="maxRetries must be at most 20"):
        parse_entry({"command": "x", "maxRetries": 21})
    with pytest.raises(ConfigError, match=r"retry\.maxAttempts must be at most 21"):
        parse_entry({"command": "x", "retry": {"maxAttempts": 22}})
    with pytest.raises(ConfigError, match="at most 21 attempts"):
        RetryPolicy(max_attempts=22)


def test_tool_settings_and_allow_list_can_be_combined() -> None:
    tools = {"search": {"effect": "read", "cache": "30s"}, "pay": {"effect": "unsafe", "timeout": 500}, "allow": ["a"]}
    server = parse_entry({"command": "x", "tools": tools})
    assert server.tools == {
        "search": ToolSettings(effect=Effect.READ, cache=30.0),
        "pay": ToolSettings(effect=Effect.UNSAFE, timeout=0.5),
    }
    assert server.extras == {} and server.allowed_tools == ("a",)
    assert parse_entry({"command": "x", "tools": ["*"]}).allowed_tools == ("*",)


@pytest.mark.parametrize(
    "bad",
    [
        {"tools": {"a": {"effect": "harmless"}}},
        {"tools": {"a": {"cache": "10s"}}},
        {"backoffMultiplier": 0.5},
        {"backoffMultiplier": True},
        {"maxRetries": -1},
        {"notProcessedCodes": "503"},
    ],
)
def test_invalid_call_setting_is_rejected(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse_entry({"command": "x", **bad})


@pytest.mark.promise("A10")
def test_every_policy_field_has_a_key() -> None:
    retry = {"maxAttempts": 4, "initialBackoff": "1s", "backoffMultiplier": 3, "rateLimitedBackoff": 2000}
    restart = {"initialBackoff": 0, "maxBackoff": "1m", "maxRestarts": 2, "window": "10s", "failedRetryInterval": "5m"}
    health = {"interval": "10s", "timeout": "2s", "failureThreshold": 1, "duringCalls": False}
    server, issues = parse_entry_with_issues(
        {
            "command": "x",
            "retry": {**retry, "maxBackoff": "30s"},
            "restart": {**restart, "resetAfter": "2m"},
            "health": health,
        },
        {},
    )
    assert server.retry == RetryPolicy(4, 1.0, 3.0, 2.0, 30.0)
    assert server.restart == RestartPolicy(0.0, 60.0, 2, 10.0, 300.0, 120.0)
    assert server.health == HealthCheck(10.0, 2.0, 1, False)
    assert (issues, server.extras) == ([], {})


@pytest.mark.parametrize(
    ("key", "policy"), [("retry", RetryPolicy), ("restart", RestartPolicy), ("health", HealthCheck)]
)
def test_new_policy_field_gets_a_key_automatically(key: str, policy: type) -> None:
    for name in field_names(policy):
        values: tuple[object, ...] = (3, 4, "4s", True, False, "https://x.example/health")
        found = []
        for value in values:
            try:
                server, issues = parse_entry_with_issues({"url": "https://x", key: {camel_case(name): value}}, {})
            except ConfigError:
                continue
            found.append((getattr(server, key) != policy(), issues))
        assert (True, []) in found, f"{key}.{camel_case(name)} cannot be set"


@pytest.mark.promise("B30")
def test_tool_can_override_single_retry_fields() -> None:
    tools = {"search": {"retry": {"attemptTimeout": "2s", "maxAttempts": 5}}, "pay": {"retry": {"maxAttempts": 1}}}
    server, issues = parse_entry_with_issues({"command": "x", "maxRetries": 1, "retryDelayMs": 9, "tools": tools}, {})
    assert server.tools["search"].retry == RetryPolicy(5, initial_backoff=0.009, attempt_timeout=2.0)
    assert server.tools["pay"].retry == RetryPolicy(1, initial_backoff=0.009)
    assert issues == []
    with pytest.raises(ConfigError):
        parse_entry({"command": "x", "tools": {"a": {"retry": {"attemptTimeout": 0}}}})


def test_flat_key_and_object_cannot_set_the_same_field() -> None:
    both = {"command": "x", "maxRetries": 1, "retry": {"maxBackoff": "5s"}}
    assert parse_entry(both).retry == RetryPolicy(max_attempts=2, max_backoff=5.0)
    with pytest.raises(ConfigError, match="set twice") as caught:
        parse_entry({"command": "x", "keepAliveInterval": 5, "health": {"interval": 6}})
    assert "keepAliveInterval" in caught.value.detail


def test_unknown_policy_key_is_named() -> None:
    server, issues = parse_entry_with_issues(
        {"command": "x", "retry": {"maxAttempt": 2, "maxAttempts": 9}, "health": {"color": 1}}, {}
    )
    assert server.retry.max_attempts == 9
    assert server.extras == {"retry": {"maxAttempt": 2}, "health": {"color": 1}}
    assert {(issue.message, issue.hint.partition(":")[0]) for issue in issues} == {
        ("unknown key retry.maxAttempt", "did you mean 'maxAttempts'?"),
        ("unknown key health.color", "known keys"),
    }


@pytest.mark.parametrize(
    "bad",
    [
        {"retry": 3},
        {"retry": {"maxAttempts": 0}},
        {"retry": {"backoffMultiplier": 0.5}},
        {"restart": {"window": 0}},
        {"restart": {"window": "9000h"}},
        {"health": {"timeout": "soon"}},
        {"health": {"duringCalls": 1}},
    ],
)
def test_invalid_policy_is_rejected(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse_entry({"command": "x", **bad})
