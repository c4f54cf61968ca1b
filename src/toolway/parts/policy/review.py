"""Checks for `toolway policy`: unknown names, tools that no policy permits, and test tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from toolway.catalog.catalog import Item, Prompt, Resource, Tool
from toolway.errors import ConfigError
from toolway.parts.policy.analysis import Policy, reads_only_resource, scope_reaches
from toolway.parts.policy.engine import AccessDecision, PolicyEngine, PolicyProblem
from toolway.parts.policy.entities import Caller, parse_caller
from toolway.parts.policy.policy_file import find_unfit
from toolway.types import Json

MAX_CASES: Final = 10_000
_TYPES: Final = {"call": ("Tool", Tool), "get": ("Prompt", Prompt), "read": ("Resource", Resource)}
_CASE_KEYS: Final = frozenset({"user", "groups", "admin", "client", "mfa", "hour", "tool", "args", "expect", "action"})


class UnknownName(NamedTuple):
    """A name in a policy file that does not belong to any configured server or tool."""

    policy: str
    line: int
    name: str  # as in the policy: Tool::"github.x"
    suggestion: str  # "" if nothing is near


class Review(NamedTuple):
    """Findings about a policy file: names, tools and policies that may be mistakes."""

    unknown: Sequence[UnknownName]
    unreachable: Sequence[str]  # tools that no policy permits to anyone
    unused: Sequence[str]  # labels of policies that apply to none of the known items
    unfit: Sequence[PolicyProblem]

    @property
    def is_clean(self) -> bool:
        return not (self.unknown or self.unfit)


class PolicyTest(NamedTuple):
    """One row of a policy test table: a call, and whether it should be allowed."""

    caller: Caller
    action: str
    tool: str
    arguments: Json
    hour: int
    expected: bool


def review(engine: PolicyEngine, tools: Sequence[Item], servers: Iterable[str]) -> Review:
    """Check a policy file against all tools: unknown names, tools nobody may call, unused policies."""
    known_servers, names = set(servers), {f"{each.server}.{each.name}" for each in tools}
    unknown = [
        found
        for policy in engine.policies
        for type_, name in sorted(policy.use.names)
        if (found := _check_name(policy, type_, name, known_servers, names)) is not None
    ]
    permits = engine.build_permits({each.id: _open_scope(each) for each in engine.policies})
    labels = {each.label: each.is_permit for each in engine.policies}
    anybody = engine.subject_of(parse_caller(""))
    reached: set[str] = set()
    unreachable = []
    for tool in tools:
        found_labels = engine.reasons(permits, anybody, 12, engine.reduce.item("Tool", tool))
        reached.update(found_labels)
        if not any(labels[each] for each in found_labels):
            unreachable.append(f"{tool.server}.{tool.name}")
    unused = [
        each.label
        for each in engine.policies
        if each.label not in reached and _is_about_tools(each) and {name[0] for name in each.use.names} & _NAMING
    ]
    return Review(unknown, unreachable, unused, find_unfit(engine, tools))


_NAMING: Final = {"Tool", "Server"}


def explain(engine: PolicyEngine, case: PolicyTest, item: Item) -> tuple[AccessDecision, list[Policy]]:
    """Return the decision about a test's call, and the policies behind the decision."""
    facts = engine.reduce.item(_TYPES[case.action][0], item)
    name = f"{item.server}.{item.name}"
    decision = engine.decide(engine.subject_of(case.caller), case.hour, facts, case.arguments, name)
    return decision, [each for each in engine.policies if each.label in decision.policies]


def find_item(case: PolicyTest, tools: Iterable[Item]) -> Item | None:
    """Return the tool, prompt, or resource that a policy test calls, or None if no server has the tool."""
    if case.action == "call":
        return next((each for each in tools if f"{each.server}.{each.name}" == case.tool), None)
    server, _, name = case.tool.partition(".")
    return _TYPES[case.action][1](server, name, {})


def read_cases(document: Any, file: str) -> list[PolicyTest]:
    """Return the tests in a table of policy tests. Raises `ConfigError` if the table is invalid."""
    rows = document.get("tests") if isinstance(document, dict) else document
    if not isinstance(rows, list) or len(rows) > MAX_CASES:
        raise _case_error(file, "", f"the file must be a list of at most {MAX_CASES} tests")
    return [_read_case(row, f"test {number}", file) for number, row in enumerate(rows, 1)]


def _read_case(row: Any, where: str, file: str) -> PolicyTest:
    if not isinstance(row, dict) or not row.keys() <= _CASE_KEYS:
        unknown = sorted(map(str, row.keys() - _CASE_KEYS)) if isinstance(row, dict) else []
        raise _case_error(file, where, f"unknown key {unknown[0]!r}" if unknown else "a test must be an object")
    expected, groups, arguments = row.get("expect"), row.get("groups", []), row.get("args", {})
    if expected not in ("allow", "deny"):
        raise _case_error(file, where, "expect must be allow or deny")
    if not isinstance(row.get("user"), str) or not isinstance(row.get("tool"), str):
        raise _case_error(file, where, "user and tool must be strings")
    if not isinstance(groups, list) or not isinstance(arguments, dict):
        raise _case_error(file, where, "groups must be a list, and args an object")
    hour, action = row.get("hour", 12), row.get("action", "call")
    if isinstance(hour, bool) or not isinstance(hour, int) or not 0 <= hour < 24:
        raise _case_error(file, where, "hour must be a number from 0 to 23")
    if action not in _TYPES:
        raise _case_error(file, where, "action must be call, get or read")
    caller = parse_caller(row["user"], map(str, groups), str(row.get("client", "")), mfa=row.get("mfa") is True)
    if "admin" in row:
        caller = caller._replace(admin=row["admin"] is True)
    return PolicyTest(caller, action, row["tool"], arguments, hour, expected == "allow")


def _case_error(file: str, where: str, detail: str) -> ConfigError:
    return ConfigError(
        "the policy test table is not valid",
        file=file,
        detail=f"{where}: {detail}" if where else detail,
        hint="use rows such as {user: alice, groups: [eng], tool: github.search, expect: allow}",
        code="E-POLICY",
    )


def _open_scope(policy: Policy) -> Json:
    """Return a policy as a permit for every caller, keeping only conditions on the resource.

    This finds the items that the policy can apply to, whoever calls them with whatever arguments.
    """
    conditions = [each for each in policy.definition["conditions"] if reads_only_resource(each["body"])]
    return {**policy.definition, "effect": "permit", "principal": {"op": "All"}, "conditions": conditions}


def _is_about_tools(policy: Policy) -> bool:
    return scope_reaches(policy.definition["action"], "Action", "call", frozenset())


def _check_name(policy: Policy, type_: str, name: str, servers: set[str], tools: set[str]) -> UnknownName | None:
    if type_ == "Server":
        known: Iterable[str] = servers
    elif type_ == "Tool":
        known = tools
    elif type_ in ("Prompt", "Resource"):  # those lists may change at any time: only the server is compared
        known = servers
        if name.partition(".")[0] in servers:
            return None
    else:
        return None
    if name in known:
        return None
    near = get_close_matches(name, list(known), 1, 0.6)
    return UnknownName(policy.label, policy.line, f'{type_}::"{name}"', near[0] if near else "")
