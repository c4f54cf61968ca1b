"""Rules: what the settings and the catalog say about a call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from toolway.catalog.catalog import Catalog
from toolway.config.schema import RetryPolicy, Server, Timeout, ToolSettings
from toolway.errors import ConfigError, OutcomeUnknown
from toolway.hub.call_policy import CallPolicies
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.hub.hub import Hub
from toolway.testing import FakeHttp
from toolway.types import Call, CallResult, Effect, Json, ToolRef

READ, IDEMPOTENT, UNSAFE = Effect
HINTS = {"readOnlyHint": True}


def tool(name: str = "t", **more: Any) -> Json:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def rules(server: Server | None = None, *tools: Json) -> CallPolicies:
    catalog = Catalog()
    catalog.add_server("s")
    catalog.replace("s", "tools", tools)
    return CallPolicies({"s": server or Server(command="x")}, catalog)


def server(rule: ToolSettings | None = None, **facts: Any) -> Server:
    return replace(Server(command="x"), tools={"t": rule} if rule is not None else {}, **facts)


def call(effect: Effect = READ, **facts: Any) -> Call:
    facts = {"method": "tools/call", "params": {"name": "t", "arguments": {"a": 1}}, "name": "t", **facts}
    return Call("s.t", server="s", effect=effect, **facts)


def trusted_read() -> Server:
    return server(ToolSettings(effect=READ, cache=10.0))


# -- effects -----------------------------------------------------------------------------------------------------------


def test_unknown_tool_is_unsafe() -> None:
    assert rules().effect(call()) is UNSAFE
    assert rules(None, tool()).effect(call()) is UNSAFE


@pytest.mark.parametrize("name", ["get_user", "read_file", "list_all", "search", "delete"])
def test_name_and_description_do_not_affect_effect(name) -> None:
    known = rules(None, tool(name, description="Read only. Safe to retry.", title="Get"))
    assert known.effect(call(name=name)) is UNSAFE


def test_hints_come_from_listed_definition() -> None:
    assert rules(None, tool(annotations=HINTS)).effect(call()) is READ
    assert rules(None, tool(annotations={"idempotentHint": True})).effect(call()) is IDEMPOTENT
    assert rules(None, tool("u", annotations=HINTS)).effect(call()) is UNSAFE


@pytest.mark.parametrize("effect", list(Effect))
def test_configured_effect_overrides_hints(effect) -> None:
    assert rules(server(ToolSettings(effect=effect)), tool(annotations=HINTS)).effect(call()) is effect


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
def test_most_specific_idempotent_setting_wins(by_call, by_tool, by_server, expected) -> None:
    known = rules(server(ToolSettings(idempotent=by_tool), idempotent=by_server))
    assert known.effect(call(idempotent=by_call)) is expected


def test_retry_policy_does_not_change_effect() -> None:
    assert rules(server(retry=RetryPolicy(max_attempts=5))).effect(call(max_attempts=5)) is UNSAFE


def test_idempotency_key_counts_only_if_server_supports_it() -> None:
    assert rules().effect(call(idempotency_key="k")) is UNSAFE
    assert rules(server(idempotency_meta_key="example/key")).effect(call(idempotency_key="k")) is IDEMPOTENT
    assert rules(server(idempotency_meta_key="example/key")).effect(call()) is UNSAFE


def test_other_methods_have_their_protocol_effect() -> None:
    known = rules(server(ToolSettings(effect=UNSAFE)), tool())
    assert known.effect(call(method="resources/read")) is READ
    assert known.effect(call(method="tasks/cancel")) is IDEMPOTENT
    assert known.effect(call(method="tasks/update")) is UNSAFE


# -- times and retries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by_call", "by_tool", "expected"), [(None, None, 60.0), (None, 7.0, 7.0), (3.0, 7.0, 3.0), (90.0, 7.0, 90.0)]
)
def test_most_specific_timeout_wins(by_call, by_tool, expected) -> None:
    assert rules(server(ToolSettings(timeout=by_tool))).total_timeout(call(timeout=by_call)) == expected


def test_server_timeouts_are_used() -> None:
    known = rules(server(timeout=Timeout(total=5.0, queue=1.5)))
    assert (known.total_timeout(call()), known.queue_timeout("s")) == (5.0, 1.5)


def test_call_can_limit_its_attempts() -> None:
    policy = RetryPolicy(max_attempts=3, initial_backoff=0.2)
    known = rules(server(retry=policy))
    assert known.retry_policy(call()) is policy
    assert known.retry_policy(call(max_attempts=1)) == msgspec.structs.replace(policy, max_attempts=1)
    assert known.retry_policy(call(max_attempts=5)) == msgspec.structs.replace(policy, max_attempts=5)


@pytest.mark.promise("B21")
def test_call_can_set_its_own_delays() -> None:
    own = RetryPolicy(max_attempts=4, initial_backoff=1.0, backoff_multiplier=3.0)
    known = rules(server(retry=RetryPolicy(max_attempts=1)))
    assert known.retry_policy(call(retry=own)) == own
    assert known.retry_policy(call(retry=own, max_attempts=2)) == msgspec.structs.replace(own, max_attempts=2)


def test_process_and_object_are_supervised_but_url_is_not() -> None:
    assert rules(Server(command="x")).is_process("s")
    assert rules(Server(instance=object())).is_process("s")
    assert not rules(Server(url="https://x/mcp")).is_process("s")


def test_server_can_have_its_own_idempotency_meta_key() -> None:
    assert rules().idempotency_meta_key("s") is None
    assert rules(server(idempotency_meta_key="example/key")).idempotency_meta_key("s") == "example/key"


# -- found out once ----------------------------------------------------------------------------------------------------


def settled(known: CallPolicies, catalog: Catalog, **facts: Any) -> Call:
    return known.attach(call(UNSAFE, **facts), catalog.tool(ToolRef("s", "t")))


def listing(*tools: Json) -> Catalog:
    catalog = Catalog()
    catalog.add_server("s")
    catalog.replace("s", "tools", tools)
    return catalog


def test_attached_policy_does_not_change_later() -> None:
    catalog, servers = listing(tool(annotations=HINTS)), {"s": server(ToolSettings(timeout=7.0))}
    known = CallPolicies(servers, catalog)
    early = settled(known, catalog)
    before = known.definition_hash(early)
    catalog.replace("s", "tools", [tool(description="another")])
    del servers["s"]
    assert (early.effect, known.total_timeout(early), known.definition_hash(early)) == (READ, 7.0, before)


def test_next_call_uses_new_definition_and_settings() -> None:
    catalog, servers = listing(tool(annotations=HINTS)), {"s": server()}
    known = CallPolicies(servers, catalog)
    assert settled(known, catalog).effect is READ
    catalog.replace("s", "tools", [tool()])
    assert settled(known, catalog).effect is UNSAFE
    servers["s"] = server(ToolSettings(effect=IDEMPOTENT, timeout=7.0))
    late = settled(known, catalog)
    assert (late.effect, known.total_timeout(late)) == (IDEMPOTENT, 7.0)


def test_options_of_one_call_do_not_affect_the_next() -> None:
    catalog = listing(tool())
    known = CallPolicies({"s": server(idempotency_meta_key="example/key")}, catalog)
    said: list[Json] = [{}, {"idempotent": True}, {}, {"idempotency_key": "k"}, {}]
    effects = [settled(known, catalog, **facts).effect for facts in said]
    assert effects == [UNSAFE, IDEMPOTENT, UNSAFE, IDEMPOTENT, UNSAFE]


def test_policy_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolway.hub.call_policy.MAX_CACHED_POLICIES", 10)
    catalog = listing(*(tool(f"t{n}") for n in range(100)))
    known = CallPolicies({"s": server()}, catalog)
    for each in catalog.tools():
        known.attach(call(name=each.name), each)
        assert len(known._policies) <= 10


# -- sharing -----------------------------------------------------------------------------------------------------------


def test_untrusted_hint_allows_no_sharing() -> None:
    known = rules(None, tool(annotations=HINTS))
    assert known.effect(call()) is READ
    assert known.coalesce_key(call()) is None
    assert known.cache_key(call()) is None


def test_configured_effect_or_trust_allows_sharing() -> None:
    assert rules(server(ToolSettings(effect=READ))).coalesce_key(call()) is not None
    assert rules(server(trusted=True), tool(annotations=HINTS)).coalesce_key(call()) is not None


@pytest.mark.parametrize("effect", [IDEMPOTENT, UNSAFE])
def test_only_reads_are_shared_or_cached(effect) -> None:
    known = rules(server(ToolSettings(effect=effect, cache=10.0), trusted=True))
    assert known.coalesce_key(call(effect)) is None
    assert known.cache_key(call(effect)) is None


@pytest.mark.parametrize(
    "facts",
    [
        {"idempotency_key": "k"},
        {"on_progress": lambda *_: None},
        {"params": {"name": "t", "inputResponses": {}}},
        {"params": {"name": "t", "requestState": "x"}},
    ],
    ids=["a key", "progress", "answers to the server", "a state of the server"],
)
def test_call_specific_state_prevents_sharing(facts) -> None:
    known = rules(trusted_read())
    assert known.coalesce_key(call(**facts)) is None
    assert known.cache_key(call(**facts)) is None


def test_argument_order_does_not_matter_for_sharing() -> None:
    known = rules(trusted_read())
    one = call(params={"name": "t", "arguments": {"a": 1, "b": 2}})
    other = call(params={"arguments": {"b": 2, "a": 1}, "name": "t"})
    assert known.coalesce_key(one) == known.coalesce_key(other)


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
def test_any_other_difference_prevents_sharing(facts) -> None:
    rule = ToolSettings(effect=READ, cache=10.0)
    known = rules(replace(server(), tools={"t": rule, "u": rule}))
    assert known.coalesce_key(call()) != known.coalesce_key(call(**facts))


def test_changed_definition_changes_the_key() -> None:
    before, after = rules(trusted_read(), tool()), rules(trusted_read(), tool(description="new"))
    assert before.definition_hash(call()) != after.definition_hash(call())
    assert before.coalesce_key(call()) != after.coalesce_key(call())


def test_definition_hash_needs_a_listed_tool() -> None:
    assert rules().definition_hash(call()) == ""
    assert rules(None, tool()).definition_hash(call(method="prompts/get")) == ""
    assert len(rules(None, tool()).definition_hash(call())) == 64


# -- keeping -----------------------------------------------------------------------------------------------------------


def test_tool_result_is_cached_only_for_configured_time() -> None:
    reply = CallResult("s", "t", {"ttlMs": 5000})
    assert rules(server(ToolSettings(effect=READ), trusted=True)).cache_key(call()) is None
    known = rules(trusted_read())
    assert known.cache_key(call()) is not None
    assert known.cache_ttl(call(), reply) == 10.0


@pytest.mark.parametrize(
    ("ttl", "seconds"), [(5000, 5.0), (0.5, 0.0005), (0, 0.0), (-1, 0.0), ("5000", 0.0), (None, 0.0), ([1], 0.0)]
)
def test_resource_is_cached_for_the_servers_ttl(ttl, seconds) -> None:
    reading = call(method="resources/read")
    assert rules().cache_key(reading) is not None
    assert rules().cache_ttl(reading, CallResult("s", "u", {"ttlMs": ttl})) == seconds


@pytest.mark.parametrize("method", ["prompts/get", "completion/complete"])
def test_prompts_and_completions_are_not_cached(method) -> None:
    assert rules(server(trusted=True)).cache_key(call(method=method)) is None
    assert rules().coalesce_key(call(method=method)) is not None


@pytest.mark.anyio
@pytest.mark.promise("B21")
async def test_delay_and_multiplier_of_one_call() -> None:
    delays = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        await asyncio.sleep(0)

    environment = HubEnvironment(random=lambda: 1.0, sleep=sleep)
    async with FakeHttp() as fake:
        core = HubCore({"s": {"url": fake.url, "retryDelayMs": 1}}, catalog_storage=None, environment=environment)
        async with Hub._from_core(core) as hub:
            await hub.wait_ready()
            fake.set_mode("status=503;on=echo;times=3")
            policy = RetryPolicy(max_attempts=4, initial_backoff=2.0, backoff_multiplier=3.0, max_backoff=7.0)
            assert (await hub.call_tool("s.echo", {"text": "x"}, timeout=60, retry=policy)).text == "x"
    assert delays == pytest.approx([2.0, 6.0, 7.0])


@pytest.mark.anyio
@pytest.mark.user_trial("5")
async def test_too_many_attempts_are_rejected_before_sending() -> None:
    async with FakeHttp() as fake, Hub({"s": {"url": fake.url}}, catalog_storage=None) as hub:
        with pytest.raises(ConfigError, match="at most 21 attempts"):
            await hub.call_tool("s.echo", {"text": "x"}, max_attempts=22)
        assert "tools/call" not in fake.stats.requests


@pytest.mark.anyio
@pytest.mark.user_trial("6")
async def test_unrepeated_call_error_names_the_setting() -> None:
    async with FakeHttp() as fake, Hub({"s": {"url": fake.url, "maxRetries": 2}}, catalog_storage=None) as hub:
        await hub.wait_ready()
        fake.set_mode("status=500;on=counter")
        with pytest.raises(OutcomeUnknown) as caught:
            await hub.call_tool("s.counter", {"name": "a"})
        assert 'set effect or idempotent for it, such as "tools": {"counter"' in caught.value.hint
