"""`toolway.approve`: what is accepted, and which rules apply to a tool."""

from __future__ import annotations

from typing import Any

import pytest

from toolway.config.settings import parse_gateway
from toolway.errors import ConfigError
from toolway.parts.approvals.rules import ApproveRules, parse_approve


def approvers(rules: Any, name: str, *, destructive: bool = False) -> list[str]:
    server, _, tool = name.partition(".")
    found = ApproveRules(parse_approve(rules)).find(server, tool, destructive=destructive)
    return [each.by for each in found]


def test_last_pattern_wins_and_stricter_rule_is_first() -> None:
    rules = {
        "destructive": "client",
        "bank.*": "admin",
        "bank.balance": "none",
        "db.query": {"by": "client", "when": "args.x > 1"},
    }
    assert approvers(rules, "bank.pay") == ["admin"]
    assert approvers(rules, "bank.pay", destructive=True) == ["admin", "client"]
    assert approvers(rules, "bank.balance", destructive=True) == []
    assert approvers(rules, "db.query", destructive=True) == ["client", "client"]
    assert approvers(rules, "web.get") == [] and approvers(rules, "web.get", destructive=True) == ["client"]
    assert approvers({"bank.balance": "none", "bank.*": "admin"}, "bank.balance") == ["admin"]
    assert approvers({"*": "admin"}, "any.tool") == ["admin"]
    assert not ApproveRules({})


@pytest.mark.parametrize(
    "block",
    [
        "admin",
        ["bank.*"],
        {"bank": "admin"},
        {"!bank.*": "admin"},
        {"bank.*": "Admin"},
        {"bank.*": True},
        {"bank.*": None},
        {"bank.*": {"when": "true"}},
        {"bank.*": {"by": "admin", "wenn": "true"}},
        {"bank.*": {"by": "admin", "when": 1}},
        {"bank.*": {"by": "admin", "when": "x" * 5000}},
        {"bank.*": {"by": "none", "when": "true"}},
        {"destructive": "none"},
        {f"s.t{number}": "admin" for number in range(1001)},
    ],
    ids=lambda block: str(block)[:40],
)
def test_ambiguous_rule_is_rejected(block: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gateway({"approve": block}, {})
    assert "toolway.approve" in caught.value.message


@pytest.mark.parametrize("key", ["approval", "approvals", "aprove", "Approve"])
def test_misspelled_key_is_rejected(key: str) -> None:
    with pytest.raises(ConfigError, match="unknown key toolway"):
        parse_gateway({key: {"bank.*": "admin"}}, {})


def test_condition_is_not_expanded_as_template() -> None:
    settings = parse_gateway({"approve": {"a.b": {"by": "client", "when": "args.x == '${HOME}'"}}}, {"HOME": "/h"})
    assert settings.parts["approvals"].approve["a.b"].when == "args.x == '${HOME}'"
