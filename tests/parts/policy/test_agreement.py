"""Random callers and tools: lists and calls agree, and `access` agrees with the same rules in Cedar.

100,000 pairs each with TOOLWAY_LONG=1 (`make long-tests ARGS=policy`), a few thousand without.
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import Any

from toolway.catalog.catalog import Tool
from toolway.gateway.tool_filter import filter_for_access
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.engine import PolicyEngine
from toolway.parts.policy.entities import Caller
from toolway.parts.policy.presets import access_text

PAIRS = 100_000 if os.environ.get("TOOLWAY_LONG") else 1000
SERVERS = ("github", "jira", "bank", "crm", "git")
NAMES = ("get_issue", "get_all", "delete_repo", "create", "transfer", "list", "search_get")
GROUPS = ("eng", "sales", "ops", "it", "all")
TYPES = ({"type": "integer"}, {"type": "string"}, {"type": "number"}, {"type": ["integer", "null"]}, None)
HEADS = (
    "principal",
    'principal in Group::"eng"',
    'principal in Group::"ops"',
    'principal == User::"u1"',
    'principal is User in Group::"sales"',
)
RESOURCES = (
    "resource",
    'resource in Server::"github"',
    'resource in Server::"bank"',
    'resource == Tool::"bank.transfer"',
    'resource == Tool::"jira.create"',
    "resource is Tool",
)
CONDITIONS = (
    "",
    'when { resource.name like "get_*" }',
    "when { resource.readOnlyHint }",
    "unless { resource.destructiveHint }",
    "when { context.mfa }",
    "when { context.hour >= 8 && context.hour < 18 }",
    'when { principal in [Group::"it", Group::"all"] }',
    "when { context.args has amount && context.args.amount > 100 }",
    "when { context.args.amount > 100 }",
    'when { context.args has to && context.args.to like "x*" } unless { principal.admin }',
    "unless { context.args has amount }",
)


def random_text(rng: random.Random) -> str:
    def policy() -> str:
        effect = "permit" if rng.random() < 0.65 else "forbid"
        scope = f'({rng.choice(HEADS)}, action == Action::"call", {rng.choice(RESOURCES)})'
        return f"{effect} {scope} {rng.choice(CONDITIONS)};"

    return "\n".join(policy() for _ in range(rng.randint(1, 8)))


def random_tool(rng: random.Random) -> Tool:
    name = rng.choice(NAMES)
    properties: Any = {each: schema for each in ("amount", "to", "other") if (schema := rng.choice(TYPES)) is not None}
    required = [each for each in properties if rng.random() < 0.5]
    annotations = {each: rng.random() < 0.5 for each in ("readOnlyHint", "destructiveHint") if rng.random() < 0.7}
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(rng.choice(SERVERS), name, {"name": name, "inputSchema": schema, "annotations": annotations})


def random_caller(rng: random.Random) -> Caller:
    groups = frozenset(each for each in GROUPS if rng.random() < 0.3)
    return Caller(f"u{rng.randint(0, 5)}", "user", rng.random() < 0.2, groups, "", rng.random() < 0.5)


def random_arguments(rng: random.Random) -> Any:
    values = (5, 500, "x1", "y", None, 1.5, 2**70, True, [1], {"a": 1})
    return {each: rng.choice(values) for each in ("amount", "to", "other") if rng.random() < 0.6}


def test_lists_and_calls_agree() -> None:
    """What a list hides is denied with any arguments. What takes no arguments is listed if, and only if, it is allowed.

    Each answer is compared with one that is made without any cache or first step: all policies at once, by name.
    """
    rng = random.Random(7)
    done = differing = 0
    while done < PAIRS:
        hour = rng.randint(0, 23)
        text = random_text(rng)
        engine = PolicyEngine(text)
        policy = AccessPolicy(engine, now=partial(float, hour * 3600))
        oracle = PolicyEngine(text + f"\npermit (principal, action, resource) when {{ {ALL_FACTS} }};")
        tools = [random_tool(rng) for _ in range(20)]
        for _ in range(10):
            caller = random_caller(rng)
            permission = policy.permission_of(caller)
            for tool in tools:
                arguments = random_arguments(rng)
                listed, allowed = permission.shows("tools", tool), permission.allows_call(tool, arguments)
                assert listed or not allowed, (text, caller, tool, arguments)
                if not permission.needs_arguments(tool):
                    assert listed is allowed
                assert permission.decide_call(tool, arguments).allowed is allowed
                subject = oracle.subject_of(caller)
                facts = oracle.reduce.item("Tool", tool)
                expected = oracle.decide(subject, hour, facts, arguments).allowed
                assert allowed is expected, (text, caller, tool, arguments)
                differing += listed is not allowed
                done += 1
    assert differing, "no call was denied for its arguments: the test shows nothing"


#: Never true, but reads every fact: so nothing is reduced to a placeholder.
ALL_FACTS = (
    'principal.id == "no" && principal.kind == "no" && principal.admin && resource.id == "no" '
    '&& resource.server == "no" && context.client == "no" && context.mfa && context.hour > 30'
)


def test_access_and_equivalent_cedar_rules_agree() -> None:
    rng = random.Random(11)
    done = agreed = 0
    while done < PAIRS:
        access = {
            group: tuple(random_pattern(rng) for _ in range(rng.randint(1, 4)))
            for group in (*GROUPS, "*")
            if rng.random() < 0.6
        }
        policy = AccessPolicy(PolicyEngine(access_text(access)))
        tools = [random_tool(rng) for _ in range(25)]
        for _ in range(20):
            caller = random_caller(rng)
            groups = [access[each] for each in (*sorted(caller.groups), "*") if each in access]
            tool_filter, permission = filter_for_access(groups), policy.permission_of(caller)
            for tool in tools:
                expected = f"{tool.server}.{tool.name}" in tool_filter
                assert permission.shows("tools", tool) is expected, (access, caller, tool)
                assert permission.allows_call(tool, {}) is expected
                agreed += expected
                done += 1
    assert 0.05 * done < agreed < 0.95 * done


def random_pattern(rng: random.Random) -> str:
    server, name = rng.choice(SERVERS), rng.choice(NAMES)
    forms = (f"{server}.*", f"{server}.{name}", "*", "*.get_*", f"*.{name}", "git*.*", f"{server}.*_*", "g*b.*t*")
    return ("!" if rng.random() < 0.35 else "") + rng.choice(forms)
