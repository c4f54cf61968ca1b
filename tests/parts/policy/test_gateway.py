"""A gateway with a policy: what users and keys see, call and read in both eras, and what the audit log gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import TOKEN, Edge, handshake, message_of, modern
from tests.parts.identity.issuer import Issuer, guarded
from tests.parts.identity.test_login import ask, text_of
from toolway.events import Event, PolicyDecision
from toolway.hub.plan import SWITCH
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.engine import PolicyEngine

pytestmark = pytest.mark.anyio

ERAS = ("modern", "legacy")
POLICY = """
@id("local") permit (principal == User::"local", action, resource);
@id("eng") permit (principal in Group::"eng", action, resource in Server::"a");
@id("bob") permit (principal == User::"bob", action == Action::"call", resource == Tool::"b.echo");
@id("secret")
forbid (principal, action == Action::"call", resource)
when { context.args has text && context.args.text like "secret*" };
@id("no-counter") forbid (principal, action == Action::"call", resource == Tool::"a.counter");
@id("ci") permit (principal == User::"key:a key", action, resource in Server::"b");
"""


class Denials:
    """Sink that keeps the denials of the policy."""

    wants_attempts = wants_calls = False

    def __init__(self) -> None:
        self.found: list[PolicyDecision] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, PolicyDecision):
            self.found.append(event)

    def on_call(self, event: Any) -> None:
        pass


class Holder:
    """Policy of a gateway, which a test replaces."""

    def __init__(self, text: str) -> None:
        self.policy: AccessPolicy | None = None
        self.text = text
        self.denials = Denials()

    def __call__(self) -> AccessPolicy | None:
        return self.policy

    def use(self, found: Edge, text: str) -> None:
        self.policy = AccessPolicy(PolicyEngine(text), found.hub.emit)
        found.gateway.on_access_changed()


@asynccontextmanager
async def ruled(folder: Path, text: str = POLICY, **options: Any) -> AsyncIterator[tuple[Edge, Issuer, Holder]]:
    issuer, holder = Issuer(), Holder(text)
    access = options.pop("access", {"*": ("*",)})
    async with guarded(folder, issuer, access=access, policy=holder, **options) as found:
        found.hub.instrumentation.add_sink(holder.denials)
        holder.use(found, text)
        yield found, issuer, holder


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize("era", ERAS)
async def test_lists_and_calls_follow_the_policy(tmp_path: Path, era: str) -> None:
    async with ruled(tmp_path) as (found, issuer, holder):
        eng, bob = issuer.token(), issuer.token(sub="bob", groups=[])
        nobody = issuer.token(sub="carol", groups=["sales"])
        everything = await found.tools()
        assert await found.tools(token=eng) == [
            each for each in everything if each.startswith("a__") and each != "a__counter"
        ]
        assert await found.tools(token=bob) == ["b__echo"] and await found.tools(token=nobody) == []
        for _ in range(3):  # the second call is a flight
            assert text_of(await ask(found, era, eng, call("a__add", a=1, b=2))).startswith("3")
            assert text_of(await ask(found, era, bob, call("b__echo", text="x"))) == "x"
        before, holder.denials.found = found.contacts(), []
        unknown = message_of(await ask(found, era, bob, call("b__no_such_tool")))["error"]
        for token, name in (
            (eng, "b__echo"),
            (eng, "a__counter"),
            (bob, "a__echo"),
            (bob, "b__add"),
            (nobody, "b__echo"),
        ):
            answer = message_of(await ask(found, era, token, call(name, text="z")))["error"]
            message, _, suggested = answer["message"].removesuffix("?").partition(". Did you mean ")
            assert {**answer, "message": message} == {**unknown, "message": f"Unknown tool: {name}"}
            shown = await found.tools(token=token)
            assert name not in shown and set(suggested.split(" or ")) <= {*shown, ""}, "nothing shows that it exists"
        assert found.contacts() == before
        assert [(each.item, each.rule) for each in holder.denials.found] == [
            ("b.echo", "policy"),
            ("a.counter", "policy no-counter"),
            ("a.echo", "policy"),
            ("b.add", "policy"),
            ("b.echo", "policy"),
        ]
        assert len({each.principal_id for each in holder.denials.found}) == 3
        assert not any(each.allowed for each in holder.denials.found)


@pytest.mark.parametrize("era", ERAS)
async def test_arguments_decide_each_call(tmp_path: Path, era: str) -> None:
    async with ruled(tmp_path) as (found, issuer, holder):
        bob = issuer.token(sub="bob", groups=[])
        for text in ("x", "secret plan", "y", "secret", "x"):
            answer = message_of(await ask(found, era, bob, call("b__echo", text=text)))
            if text.startswith("secret"):
                assert answer["error"]["message"] == "Unknown tool: b__echo"
                assert answer["error"]["data"]["executed"] == "no"
            else:
                assert answer["result"]["content"][0]["text"] == text
        assert [each.rule for each in holder.denials.found] == ["policy secret"] * 2
        assert found.calls("b") == 3
        odd = message_of(await ask(found, era, bob, call("b__echo", text={"deep": 1})))
        assert odd["error"]["message"] == "Unknown tool: b__echo", "a value that does not fit its schema is a denial"


@pytest.mark.parametrize("era", ERAS)
async def test_access_and_policy_must_both_allow(tmp_path: Path, era: str) -> None:
    async with ruled(tmp_path, access={"eng": ("a.echo", "b.*")}) as (found, issuer, holder):
        assert await found.tools(token=issuer.token()) == ["a__echo"]
        answer = message_of(await ask(found, era, issuer.token(), call("a__add", a=1, b=2)))
        assert answer["error"]["message"] == "Unknown tool: a__add" and not holder.denials.found, "access denied it"
        key = found.key("server/a")
        assert await found.tools(token=key) == [], "its scope has a, its policy b"
        wide = found.key()
        assert {each[:3] for each in await found.tools(token=wide)} == {"b__"}
        assert text_of(await ask(found, era, wide, call("b__echo", text="k"))) == "k"


async def test_search_hides_denied_tools_and_servers(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (found, issuer, holder):
        bob = issuer.token(sub="bob", groups=[])
        answer = await found.modern(
            "tools/call",
            call("search_tools", query="repeat a text or add numbers", limit=20),
            path="/mcp/search",
            token=bob,
        )
        tools = [each["name"] for each in answer["result"]["structuredContent"]["tools"]]
        assert tools == ["b__echo"]
        for name in ("a__echo", "b__add"):
            described = await found.modern(
                "tools/call", call("describe_tool", name=name), path="/mcp/search", token=bob
            )
            assert described["result"]["structuredContent"]["unknown"] == [name]
            hidden = call("call_tool", name=name, arguments={"text": "x"})
            result = (await found.modern("tools/call", hidden, path="/mcp/search", token=bob))["result"]
            assert result["isError"] and f"Unknown tool: {name}" in result["content"][0]["text"]
        assert [each.item for each in holder.denials.found] == ["a.echo", "b.add"]
        for text in ("ok", "secret"):
            inner = call("call_tool", name="b__echo", arguments={"text": text})
            reply = await found.modern("tools/call", inner, path="/mcp/search", token=bob)
            assert ("error" in reply) is (text == "secret"), reply
        wrong = await found.modern(
            "tools/call", call("search_tools", query="x", server="a"), path="/mcp/search", token=bob
        )
        assert "the servers are: b" in wrong["result"]["content"][0]["text"]
        assert (await ask(found, "modern", bob, call("echo", text="x"), path="/mcp/server/a")).status == 404


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_and_resources_follow_the_policy(tmp_path: Path, era: str) -> None:
    text = """
    permit (principal, action == Action::"get", resource in Server::"a");
    permit (principal, action == Action::"read", resource in Server::"b") when { resource.uri like "fake://t*" };
    """
    async with ruled(tmp_path, text) as (found, issuer, holder):
        token = issuer.token()
        session = await found.initialize(token=token)

        async def send(method: str, params: dict[str, Any]) -> Any:
            if era == "modern":
                body, fields = modern(method, params)
                return message_of(await found.ask("POST", "/mcp", body, fields, token=token))
            fields = {"Mcp-Session-Id": session}
            return message_of(await found.ask("POST", "/mcp", handshake(method, params), fields, token=token))

        assert [each["name"] for each in (await send("prompts/list", {}))["result"]["prompts"]] == ["a__greet"]
        listed = (await send("resources/list", {}))["result"]["resources"]
        assert [each["uri"] for each in listed] == ["fake://text"]
        assert (await send("resources/templates/list", {}))["result"]["resourceTemplates"] == []
        assert "result" in await send("prompts/get", {"name": "a__greet", "arguments": {"name": "Ada"}})
        denied = await send("prompts/get", {"name": "b__greet", "arguments": {"name": "Ada"}})
        assert denied["error"]["message"] == "Unknown prompt: b__greet"
        assert "result" in await send("resources/read", {"uri": "fake://text"})
        denied = await send("resources/read", {"uri": "fake://bytes"})
        assert denied["error"]["message"] == "Unknown resource: fake://bytes"
        assert [each.item for each in holder.denials.found] == ["b.greet", "b.fake://bytes"]
        assert (await send("tools/list", {}))["result"]["tools"] == []


@pytest.mark.parametrize("era", ERAS)
async def test_new_policy_applies_to_open_sessions_and_plans(tmp_path: Path, era: str) -> None:
    async with ruled(tmp_path) as (found, issuer, holder):
        eng = issuer.token()
        session = await found.initialize(token=eng)

        async def echo() -> Any:
            params = call("a__echo", text="x")
            if era == "modern":
                body, fields = modern("tools/call", params)
            else:
                body, fields = handshake("tools/call", params), {"Mcp-Session-Id": session}
            return message_of(await found.ask("POST", "/mcp", body, fields, token=eng))

        for _ in range(3):
            assert "result" in await echo()
        holder.use(found, 'permit (principal in Group::"ops", action, resource);')
        assert (await echo())["error"]["message"] == "Unknown tool: a__echo"
        assert await found.tools(token=eng) == []
        holder.use(found, 'permit (principal in Group::"eng", action, resource);')
        assert "result" in await echo() and len(await found.tools(token=eng)) == len(await found.tools(token=eng))
        holder.policy = AccessPolicy(None, found.hub.emit)
        found.gateway.on_access_changed()
        assert (await echo())["error"]["message"] == "Unknown tool: a__echo"
        assert "cannot read" in holder.denials.found[-1].reason
        assert await found.tools(token=TOKEN) == []


async def test_administrators_are_subject_to_the_policy(tmp_path: Path) -> None:
    async with ruled(tmp_path) as (found, _, holder):
        body = {"server": "a", "tool": "echo", "arguments": {"text": "secret x"}}
        answer = await found.ask("POST", "/admin/call", body)
        assert answer.status == 502 and json.loads(answer.body)["error"]["code"] == "E-POLICY-DENIED"
        body["arguments"] = {"text": "fine"}
        assert (await found.ask("POST", "/admin/call", body)).status == 200
        assert [each.rule for each in holder.denials.found] == ["policy secret"]


async def test_list_for_new_groups_is_decided_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No decision about a long list is made in the event loop."""
    async with ruled(
        tmp_path, 'permit (principal in Group::"g1", action, resource) when { resource.name like "*" };'
    ) as (
        found,
        issuer,
        _,
    ):
        loop_decisions = 0
        real = PolicyEngine._first_step

        def counted(self: PolicyEngine, *arguments: Any) -> Any:
            nonlocal loop_decisions
            try:
                asyncio.get_running_loop()
                loop_decisions += 1
            except RuntimeError:
                pass
            return real(self, *arguments)

        monkeypatch.setattr(PolicyEngine, "_first_step", counted)
        assert len(await found.tools(token=issuer.token(groups=["g1"]))) > 30
        assert loop_decisions == 0


async def test_mfa_and_client_come_from_the_token(tmp_path: Path) -> None:
    text = 'permit (principal, action, resource in Server::"a") when { context.mfa && context.client == "claude" };'
    async with ruled(tmp_path, text) as (found, issuer, _):
        assert await found.tools(token=issuer.token(amr=["pwd", "mfa"], client_id="claude"))
        for claims in (
            {"amr": ["pwd"], "client_id": "claude"},
            {"amr": "mfa", "client_id": "claude"},
            {"amr": ["mfa"], "client_id": "x"},
        ):
            assert await found.tools(token=issuer.token(**claims)) == []


async def test_decisions_are_the_same_without_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    async with ruled(tmp_path) as (found, issuer, _):
        bob = issuer.token(sub="bob", groups=[])
        assert await found.tools(token=bob) == ["b__echo"]
        assert text_of(await ask(found, "modern", bob, call("b__echo", text="x"))) == "x"
        assert "error" in message_of(await ask(found, "modern", bob, call("a__echo", text="x")))
