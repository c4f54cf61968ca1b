"""What an entry says about calls."""

from __future__ import annotations

import pytest

from toolway.config.schema import RetryPolicy, ToolSettings
from toolway.config.server_entry import parse_entry
from toolway.errors import ConfigError
from toolway.types import Effect


def test_retries_are_spelled_as_hosts_spell_them() -> None:
    server = parse_entry({"command": "x", "maxRetries": 1, "retryDelayMs": 200, "backoffMultiplier": 3})
    assert server.retry == RetryPolicy(max_attempts=2, initial_backoff=0.2, backoff_multiplier=3.0)
    assert parse_entry({"command": "x", "maxRetries": 0}).retry.max_attempts == 1
    assert parse_entry({"command": "x"}).retry == RetryPolicy()


def test_more_than_five_attempts_are_never_made() -> None:
    assert parse_entry({"command": "x", "maxRetries": 50}).retry.max_attempts == 5


def test_a_tool_has_rules_of_its_own_and_lists_of_names_are_left_alone() -> None:
    tools = {"search": {"effect": "read", "cache": "30s"}, "pay": {"effect": "unsafe", "timeout": 500}, "allow": ["a"]}
    server = parse_entry({"command": "x", "tools": tools})
    assert server.tools == {
        "search": ToolSettings(effect=Effect.READ, cache=30.0),
        "pay": ToolSettings(effect=Effect.UNSAFE, timeout=0.5),
    }
    assert server.extras == {"tools": {"allow": ["a"]}}
    assert parse_entry({"command": "x", "tools": ["*"]}).extras == {"tools": ["*"]}


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
def test_a_rule_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse_entry({"command": "x", **bad})
