"""What an entry says about calls."""

from __future__ import annotations

import pytest

from toolway.config.entries import entry
from toolway.config.spec import Retry, ToolRule
from toolway.errors import ConfigError
from toolway.model import Effect


def test_retries_are_spelled_as_hosts_spell_them() -> None:
    server = entry({"command": "x", "maxRetries": 1, "retryDelayMs": 200, "backoffMultiplier": 3})
    assert server.retry == Retry(attempts=2, delay=0.2, multiplier=3.0)
    assert entry({"command": "x", "maxRetries": 0}).retry.attempts == 1
    assert entry({"command": "x"}).retry == Retry()


def test_more_than_five_attempts_are_never_made() -> None:
    assert entry({"command": "x", "maxRetries": 50}).retry.attempts == 5


def test_a_tool_has_rules_of_its_own_and_lists_of_names_are_left_alone() -> None:
    tools = {"search": {"effect": "read", "cache": "30s"}, "pay": {"effect": "unsafe", "timeout": 500}, "allow": ["a"]}
    server = entry({"command": "x", "tools": tools})
    assert server.tools == {
        "search": ToolRule(effect=Effect.READ, cache=30.0),
        "pay": ToolRule(effect=Effect.UNSAFE, timeout=0.5),
    }
    assert server.extras == {"tools": {"allow": ["a"]}}
    assert entry({"command": "x", "tools": ["*"]}).extras == {"tools": ["*"]}


@pytest.mark.parametrize(
    "bad",
    [
        {"tools": {"a": {"effect": "harmless"}}},
        {"tools": {"a": {"cache": "10s"}}},
        {"backoffMultiplier": 0.5},
        {"backoffMultiplier": True},
        {"maxRetries": -1},
        {"unprocessed": "503"},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        entry({"command": "x", **bad})
