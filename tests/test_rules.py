"""Rules: what the settings and the catalog say about a call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from toolway.catalog.index import Catalog
from toolway.config.spec import Retry, Server, Timeout, ToolRule
from toolway.model import Call, Effect, Json, Reply, ToolRef
from toolway.rules import Rules

READ, IDEMPOTENT, UNSAFE = Effect
HINTS = {"readOnlyHint": True}


def tool(name: str = "t", **more: Any) -> Json:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def rules(server: Server | None = None, *tools: Json) -> Rules:
    catalog = Catalog()
    catalog.add_server("s")
    catalog.replace("s", "tools", tools)
    return Rules({"s": server or Server(command="x")}, catalog)


def server(rule: ToolRule | None = None, **facts: Any) -> Server:
    return replace(Server(command="x"), tools={"t": rule} if rule is not None else {}, **facts)


def call(effect: Effect = READ, **facts: Any) -> Call:
    facts = {"method": "tools/call", "params": {"name": "t", "arguments": {"a": 1}}, "name": "t", **facts}
    return Call("s.t", server="s", effect=effect, **facts)


def trusted_read() -> Server:
    return server(ToolRule(effect=READ, cache=10.0))


# -- effects -----------------------------------------------------------------------------------------------------------


def test_a_tool_of_which_nothing_is_known_is_unsafe() -> None:
    assert rules().effect(call()) is UNSAFE
    assert rules(None, tool()).effect(call()) is UNSAFE


@pytest.mark.parametrize("name", ["get_user", "read_file", "list_all", "search", "delete"])
def test_a_name_or_a_description_says_nothing(name) -> None:
    known = rules(None, tool(name, description="Read only. Safe to retry.", title="Get"))
    assert known.effect(call(name=name)) is UNSAFE


def test_hints_are_those_of_the_listed_definition() -> None:
    assert rules(None, tool(annotations=HINTS)).effect(call()) is READ
    assert rules(None, tool(annotations={"idempotentHint": True})).effect(call()) is IDEMPOTENT
    assert rules(None, tool("u", annotations=HINTS)).effect(call()) is UNSAFE


@pytest.mark.parametrize("effect", list(Effect))
def test_the_operator_wins_over_hints(effect) -> None:
    assert rules(server(ToolRule(effect=effect)), tool(annotations=HINTS)).effect(call()) is effect


@pytest.mark.parametrize(
    ("by_call", "by_tool", "by_server", "expected"),
    [
        (None, None, False, UNSAFE),
        (None, None, True, IDEMPOTENT),
        (None, True, False, IDEMPOTENT),
        (None, False, True, UNSAFE),
        (True, False, False, IDEMPOTENT),
        (False, True, True, UNSAFE),
    ],
)
def test_the_nearest_word_that_a_call_may_run_again_counts(by_call, by_tool, by_server, expected) -> None:
    known = rules(server(ToolRule(repeatable=by_tool), repeatable=by_server))
    assert known.effect(call(repeatable=by_call)) is expected


def test_retries_alone_make_nothing_repeatable() -> None:
    assert rules(server(retry=Retry(attempts=5))).effect(call(retries=4)) is UNSAFE


def test_a_key_lifts_the_effect_only_where_the_server_honours_it() -> None:
    assert rules().effect(call(key="k")) is UNSAFE
    assert rules(server(key_meta="example/key")).effect(call(key="k")) is IDEMPOTENT
    assert rules(server(key_meta="example/key")).effect(call()) is UNSAFE


def test_other_methods_have_the_effect_of_the_protocol() -> None:
    known = rules(server(ToolRule(effect=UNSAFE)), tool())
    assert known.effect(call(method="resources/read")) is READ
    assert known.effect(call(method="tasks/cancel")) is IDEMPOTENT
    assert known.effect(call(method="tasks/update")) is UNSAFE


# -- times and retries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by_call", "by_tool", "expected"), [(None, None, 60.0), (None, 7.0, 7.0), (3.0, 7.0, 3.0), (90.0, 7.0, 90.0)]
)
def test_the_nearest_timeout_counts(by_call, by_tool, expected) -> None:
    assert rules(server(ToolRule(timeout=by_tool))).timeout(call(timeout=by_call)) == expected


def test_the_servers_own_times_are_used() -> None:
    known = rules(server(timeout=Timeout(total=5.0, queue=1.5)))
    assert (known.timeout(call()), known.queue("s")) == (5.0, 1.5)


def test_retries_of_a_call_are_attempts_less_one() -> None:
    policy = Retry(attempts=3, delay=0.2)
    known = rules(server(retry=policy))
    assert known.retry(call()) is policy
    assert known.retry(call(retries=0)) == replace(policy, attempts=1)
    assert known.retry(call(retries=4)) == replace(policy, attempts=5)


def test_a_process_or_an_object_is_supervised_and_an_address_is_not() -> None:
    assert rules(Server(command="x")).supervised("s")
    assert rules(Server(instance=object())).supervised("s")
    assert not rules(Server(url="https://x/mcp")).supervised("s")


def test_a_server_may_honour_keys_under_a_name_of_its_own() -> None:
    assert rules().key_meta("s") is None
    assert rules(server(key_meta="example/key")).key_meta("s") == "example/key"


# -- found out once ----------------------------------------------------------------------------------------------------


def settled(known: Rules, catalog: Catalog, **facts: Any) -> Call:
    return known.settle(call(UNSAFE, **facts), catalog.tool(ToolRef("s", "t")))


def listing(*tools: Json) -> Catalog:
    catalog = Catalog()
    catalog.add_server("s")
    catalog.replace("s", "tools", tools)
    return catalog


def test_what_is_known_of_a_call_stays_as_it_was_when_the_call_came() -> None:
    catalog, servers = listing(tool(annotations=HINTS)), {"s": server(ToolRule(timeout=7.0))}
    known = Rules(servers, catalog)
    early = settled(known, catalog)
    before = known.definition(early)
    catalog.replace("s", "tools", [tool(description="another")])
    del servers["s"]
    assert (early.effect, known.timeout(early), known.definition(early)) == (READ, 7.0, before)


def test_the_next_call_hears_of_a_new_definition_and_of_new_settings() -> None:
    catalog, servers = listing(tool(annotations=HINTS)), {"s": server()}
    known = Rules(servers, catalog)
    assert settled(known, catalog).effect is READ
    catalog.replace("s", "tools", [tool()])
    assert settled(known, catalog).effect is UNSAFE
    servers["s"] = server(ToolRule(effect=IDEMPOTENT, timeout=7.0))
    late = settled(known, catalog)
    assert (late.effect, known.timeout(late)) == (IDEMPOTENT, 7.0)


def test_what_one_caller_says_of_his_call_is_not_said_of_the_next() -> None:
    catalog = listing(tool())
    known = Rules({"s": server(key_meta="example/key")}, catalog)
    said: list[Json] = [{}, {"repeatable": True}, {}, {"key": "k"}, {}]
    effects = [settled(known, catalog, **facts).effect for facts in said]
    assert effects == [UNSAFE, IDEMPOTENT, UNSAFE, IDEMPOTENT, UNSAFE]


def test_what_is_remembered_of_tools_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.rules.MOST", 10)
    catalog = listing(*(tool(f"t{n}") for n in range(100)))
    known = Rules({"s": server()}, catalog)
    for each in catalog.tools():
        known.settle(call(name=each.key), each)
        assert len(known._known) <= 10


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_a_servers_hint_alone_shares_nothing() -> None:
    known = rules(None, tool(annotations=HINTS))
    assert known.effect(call()) is READ
    assert known.shared_identity(call()) is None
    assert known.cache_identity(call()) is None


def test_the_operators_word_or_trust_shares() -> None:
    assert rules(server(ToolRule(effect=READ))).shared_identity(call()) is not None
    assert rules(server(trusted=True), tool(annotations=HINTS)).shared_identity(call()) is not None


@pytest.mark.parametrize("effect", [IDEMPOTENT, UNSAFE])
def test_only_reads_are_shared_or_kept(effect) -> None:
    known = rules(server(ToolRule(effect=effect, cache=10.0), trusted=True))
    assert known.shared_identity(call(effect)) is None
    assert known.cache_identity(call(effect)) is None


@pytest.mark.parametrize(
    "facts",
    [
        {"key": "k"},
        {"on_progress": lambda *_: None},
        {"params": {"name": "t", "inputResponses": {}}},
        {"params": {"name": "t", "requestState": "x"}},
    ],
    ids=["a key", "progress", "answers to the server", "a state of the server"],
)
def test_what_belongs_to_one_call_is_not_shared(facts) -> None:
    known = rules(trusted_read())
    assert known.shared_identity(call(**facts)) is None
    assert known.cache_identity(call(**facts)) is None


def test_two_reads_are_the_same_whatever_the_order_of_their_arguments() -> None:
    known = rules(trusted_read())
    one = call(params={"name": "t", "arguments": {"a": 1, "b": 2}})
    other = call(params={"arguments": {"b": 2, "a": 1}, "name": "t"})
    assert known.shared_identity(one) == known.shared_identity(other)


@pytest.mark.parametrize(
    "facts",
    [
        {"caller": "someone else"},
        {"params": {"name": "t", "arguments": {"a": 2}}},
        {"params": {"name": "t", "arguments": {"a": 1}, "_meta": {"x": 1}}},
        {"name": "u"},
        {"method": "resources/read"},
    ],
    ids=["caller", "arguments", "meta", "tool", "method"],
)
def test_anything_else_that_differs_makes_it_another_read(facts) -> None:
    rule = ToolRule(effect=READ, cache=10.0)
    known = rules(replace(server(), tools={"t": rule, "u": rule}))
    assert known.shared_identity(call()) != known.shared_identity(call(**facts))


def test_a_changed_definition_makes_it_another_read() -> None:
    before, after = rules(trusted_read(), tool()), rules(trusted_read(), tool(description="new"))
    assert before.definition(call()) != after.definition(call())
    assert before.shared_identity(call()) != after.shared_identity(call())


def test_a_definition_is_known_when_the_tool_is() -> None:
    assert rules().definition(call()) == ""
    assert rules(None, tool()).definition(call(method="prompts/get")) == ""
    assert len(rules(None, tool()).definition(call())) == 64


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_a_tools_answer_is_kept_only_where_the_operator_says_for_how_long() -> None:
    reply = Reply("s", "t", {"ttlMs": 5000})
    assert rules(server(ToolRule(effect=READ), trusted=True)).cache_identity(call()) is None
    known = rules(trusted_read())
    assert known.cache_identity(call()) is not None
    assert known.cache_seconds(call(), reply) == 10.0


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(5000, 5.0), (0.5, 0.0005), (0, 0.0), (-1, 0.0), ("5000", 0.0), (None, 0.0), ([1], 0.0)]
)
def test_a_resource_is_kept_for_as_long_as_the_server_says(ttl, seconds) -> None:
    reading = call(method="resources/read")
    assert rules().cache_identity(reading) is not None
    assert rules().cache_seconds(reading, Reply("s", "u", {"ttlMs": ttl})) == seconds


@pytest.mark.parametrize("method", ["prompts/get", "completion/complete"])
def test_nothing_else_is_kept(method) -> None:
    assert rules(server(trusted=True)).cache_identity(call(method=method)) is None
    assert rules().shared_identity(call(method=method)) is not None
