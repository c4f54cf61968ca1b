"""Cedar policies: the three traps, what is refused at the load, and decisions that depend on no arguments."""

from __future__ import annotations

from typing import Any

import pytest

from toolway.catalog.catalog import Resource, Tool
from toolway.errors import ConfigError
from toolway.gateway.principals import LOCAL_ADMIN, Principal
from toolway.parts.policy.engine import AccessDecision, InvalidPolicies, PolicyEngine, Verdict
from toolway.parts.policy.entities import Caller, caller_of
from toolway.parts.policy.policy_file import find_unfit

BANK = """
permit (principal, action, resource in Server::"bank");
@id("limit")
forbid (principal, action == Action::"call", resource == Tool::"bank.transfer") when { context.args.amount > 100 };
"""
ALICE = Caller("alice", groups=frozenset({"eng"}))


def tool(name: str, properties: Any = None, *, required: list[str] | None = None, **annotations: bool) -> Tool:
    server, _, own = name.partition(".")
    schema = {"type": "object", "properties": properties or {}, "required": required or []}
    return Tool(server, own, {"name": own, "inputSchema": schema, "annotations": annotations})


def transfer(**amount: Any) -> Tool:
    return tool("bank.transfer", {"amount": amount}, required=["amount"])


def decide(text: str, item: Tool, arguments: Any = None, caller: Caller = ALICE, hour: int = 12) -> AccessDecision:
    engine = PolicyEngine(text)
    return engine.decide(engine.subject_of(caller), hour, engine.reduce.item("Tool", item), arguments or {})


def test_error_in_forbid_denies() -> None:
    item = transfer(type="integer")
    assert decide(BANK, item, {"amount": 5}).allowed
    assert decide(BANK, item, {"amount": 500}) == AccessDecision(False, ("limit",))
    missing = decide(BANK, item, {})
    assert not missing.allowed and "policy limit" in missing.reason, "Cedar itself skips the forbid, and permits"
    assert not decide(BANK, item, {"amount": "500"}).allowed
    overflow = "permit (principal, action, resource); forbid (principal, action, resource) when { %s };"
    always = decide(overflow % "context.hour * 9223372036854775807 > 0", tool("a.b"))
    assert not always.allowed and "overflow" in always.reason


def test_policy_that_conflicts_with_tool_schema_denies_tool() -> None:
    text_amount = transfer(type="string")
    engine = PolicyEngine(BANK)
    facts = engine.reduce.item("Tool", text_amount)
    step = engine.first_step(engine.subject_of(ALICE), 12, facts, "bank.transfer")
    assert step.verdict is Verdict.DENY and "expected Long but saw String" in step.decision.reason
    assert [(each.policy, each.tool) for each in engine.unfit.values()] == [("limit", "bank.transfer")]
    problems = find_unfit(engine, [text_amount, tool("bank.list"), transfer(type="integer")])
    assert [each.tool for each in problems] == ["bank.transfer"]
    assert decide(BANK, tool("bank.list")).allowed


@pytest.mark.parametrize(
    ("schema", "value", "condition", "allowed"),
    [
        ({"type": ["string", "null"]}, None, "context.args has v", True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "x", 'context.args has v && context.args.v == "x"', False),
        ({"type": "number"}, 1.5, 'context.args has v && context.args.v == "1.5"', False),
        ({"type": "number"}, 2, 'context.args has v && context.args.v == "2"', False),
        ({"type": "integer"}, 2**63 - 1, "context.args has v && context.args.v < 5", True),
        ({"type": "integer"}, 2**63, "context.args has v && context.args.v < 5", False),
        ({"type": "integer"}, 2**70, "context.args has v && context.args.v < 5", False),
        ({"type": "integer"}, float("inf"), "context.args has v && context.args.v < 5", False),
        ({"type": "integer"}, 7.0, "context.args has v && context.args.v < 5", True),
        ({"type": "integer"}, True, "context.args has v && context.args.v < 5", False),
        (
            {"type": "array", "items": {"type": "string"}},
            ["a", None],
            'context.args has v && context.args.v.contains("a")',
            False,
        ),
        ({"$ref": "#/$defs/T"}, {"n": None}, "context.args has v && context.args.v has n", True),
        ({"type": "string"}, "x" * 70_000, 'context.args has v && context.args.v == "y"', False),
        ({"type": "string"}, "\ud800", 'context.args has v && context.args.v == "y"', False),
    ],
)
def test_nulls_floats_and_large_integers(schema: Any, value: Any, condition: str, allowed: bool) -> None:
    """A null is left out, a number is a text; what Cedar cannot hold is a denial."""
    item = tool("a.b", {"v": schema})
    item.raw["inputSchema"]["$defs"] = {"T": {"type": "object", "properties": {"n": {"type": "string"}}}}
    forbid = f'forbid (principal, action == Action::"call", resource) when {{ {condition} }};'
    text = f"permit (principal, action, resource); {forbid}"
    assert decide(text, item, {"v": value}).allowed is allowed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("permit (", "end of input"),
        ('permit (principal, action, resource in Sever::"x");', "Sever"),
        ("permit (principal, action, resource) when { resource.readOnly };", "readOnly"),
        ("permit (principal, action, resource) when { context.args.x == 1 };", 'Action::"call"'),
        ('permit (principal, action == Action::"call", resource) when { context.args == {} };', "context.args.NAME"),
        ("permit (principal == ?principal, action, resource);", "templates"),
        ("permit (principal, action, resource) when { (if true then principal else principal).admin };", "expression"),
        ("permit (principal, action, resource) when { context == {} };", "context"),
        ('@id("a") permit (principal, action, resource); @id("a") permit (principal, action, resource);', "same name"),
        (
            'permit (principal, action == Action::"call", resource) when { principal.admn } when { context.args.x };',
            "admn",
        ),
    ],
)
def test_invalid_policies_are_not_loaded(text: str, words: str) -> None:
    with pytest.raises(InvalidPolicies) as refused:
        PolicyEngine(text)
    assert words in str(refused.value)


def test_missing_engine_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", fail)
    with pytest.raises(ConfigError) as refused:
        PolicyEngine(BANK)
    assert refused.value.code == "E-POLICY-MISSING" and "toolway[policy]" in refused.value.hint


def test_only_attributes_that_policies_read_matter() -> None:
    engine = PolicyEngine('permit (principal in Group::"eng", action, resource in Server::"bank");')
    subjects = {
        engine.subject_of(Caller(f"u{n}", groups=frozenset({"eng", f"g{n}"}), client=f"c{n}")) for n in range(9)
    }
    assert len(subjects) == 1
    assert len({engine.reduce.item("Tool", tool(f"bank.t{n}")) for n in range(9)}) == 1
    by_name = PolicyEngine('permit (principal == User::"u3", action, resource) when { resource.name like "t*" };')
    assert len({by_name.subject_of(Caller(f"u{n}")) for n in range(9)}) == 2
    assert len({by_name.reduce.item("Tool", tool(f"bank.t{n}")) for n in range(9)}) == 9


def test_placeholders_cannot_match_a_policy() -> None:
    engine = PolicyEngine('permit (principal == User::"?", action, resource == Tool::"?");')
    facts = engine.reduce.item("Tool", tool("a.b"))
    assert not engine.decide(engine.subject_of(Caller("alice")), 1, facts, {}).allowed


def test_principal_names_cannot_collide() -> None:
    key = Principal("k1", "ci", "key:k1")
    assert caller_of(key).id == "key:ci" and caller_of(LOCAL_ADMIN).id == "local"
    people = [Principal(f"user:{n}", "x", "", subject=each) for n, each in enumerate(("alice", "local", "key:ci"))]
    assert [caller_of(each).id for each in people] == ["alice", "user:local", "user:key:ci"]


def test_hour_mfa_client_and_hints() -> None:
    text = """
    permit (principal, action, resource) when { resource.readOnlyHint || context.mfa };
    forbid (principal, action, resource) when { context.hour < 8 || context.client == "bad" };
    """
    reading, writing = tool("a.get", readOnlyHint=True), tool("a.set")
    with pytest.raises(InvalidPolicies, match="readOnlyHint"):
        PolicyEngine(text)  # prompts have none
    text = text.replace("action, resource) when { resource", 'action == Action::"call", resource) when { resource')
    assert decide(text, reading).allowed and not decide(text, writing).allowed
    assert decide(text, writing, caller=Caller("a", mfa=True)).allowed
    assert not decide(text, reading, hour=7).allowed
    assert not decide(text, reading, caller=Caller("a", client="bad")).allowed


def test_resources_and_prompts_have_their_own_actions() -> None:
    engine = PolicyEngine(
        'permit (principal, action == Action::"read", resource in Server::"files")'
        'when { resource.uri like "file:///pub/*" };'
    )
    subject = engine.subject_of(ALICE)
    for uri, allowed in (("file:///pub/a", True), ("file:///etc/passwd", False)):
        facts = engine.reduce.item("Resource", Resource("files", uri, {}))
        assert engine.decide(subject, 1, facts, {}).allowed is allowed
    assert not engine.decide(subject, 1, engine.reduce.item("Tool", tool("files.read")), {}).allowed
    assert engine.may_include(subject, "files") and not engine.may_include(subject, "bank")
