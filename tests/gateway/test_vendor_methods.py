"""Methods that the protocol does not know, at the endpoint of one server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import Answer, Lab, Raw, lab, until
from tests.gateway.full_server import FullHttp
from toolway.config.schema import is_vendor_method
from toolway.config.schema import passes_vendor_method as passes
from toolway.config.server_entry import parse_entry
from toolway.errors import ConfigError
from toolway.events import CallFinished, Event
from toolway.gateway.principals import FileApiKeyStore
from toolway.gateway.tool_filter import ToolFilter
from toolway.parts.budgets.settings import CallBudget
from toolway.parts.policy.access_policy import AccessPolicy
from toolway.parts.policy.engine import PolicyEngine

pytestmark = [pytest.mark.anyio, pytest.mark.user_trial("34")]

Json = dict[str, Any]
METHOD = "x-acme/search"
BOTH_ERAS = pytest.mark.parametrize("era", ["modern", "legacy"])


class VendorServer(FullHttp):
    """Echoes the params of every method of `x-acme`, and remembers requests and notifications."""

    def __init__(self, era: str) -> None:
        super().__init__(era)
        self.requests: list[str] = []
        self.notifications: list[Json] = []
        dispatch = self.server._dispatch

        def answer(call: Any) -> Any:
            if not call.method.startswith("x-acme/"):
                return dispatch(call)
            self.requests.append(call.method)
            params = {key: value for key, value in call.params.items() if key != "_meta"}
            return {"got": params, "vast": 2**70, "none": None}

        self.server._dispatch = answer  # type: ignore[method-assign]
        endpoint: Any = self.endpoint
        handle = endpoint._handle_client_message

        def record(peer: Any, message: Json) -> None:
            if "x-" in message.get("method", ""):
                self.notifications.append(message)
            handle(peer, message)

        endpoint._handle_client_message = record


class CallRecorder:
    wants_attempts = False

    def __init__(self) -> None:
        self.ended: list[CallFinished] = []

    def on_call(self, event: CallFinished) -> None:
        self.ended.append(event)

    def on_event(self, event: Event) -> None: ...


@asynccontextmanager
async def vendor(era: str, **more: Any) -> AsyncIterator[tuple[Lab, VendorServer]]:
    fake = VendorServer(era)
    async with fake:
        entries: Json = {
            "full": {"url": fake.url, "vendorMethods": ["x-acme/*", "notifications/x-acme/*"]},
            "plain": {"url": fake.url},
        }
        async with lab(entries, **more) as found:
            yield found, fake


async def ask(raw: Raw, era: str, method: str, params: Json) -> Answer:
    return await (raw.ask(method, params) if era == "modern" else raw.request(method, params))


@asynccontextmanager
async def client(found: Lab, era: str, endpoint: str, token: str | None = None) -> AsyncIterator[Raw]:
    async with found.raw(endpoint, token) as raw:
        if era == "legacy":
            await raw.initialize()
        yield raw


@pytest.mark.parametrize("server_era", ["modern", "legacy"])
@BOTH_ERAS
async def test_request_passes_at_the_endpoint_of_its_server(era: str, server_era: str) -> None:
    async with vendor(server_era) as (found, fake):
        async with client(found, era, "server/full") as raw:
            answer = await ask(raw, era, METHOD, {"query": ["a", None, 1.5]})
            assert answer.status == 200
            assert {key: answer.result[key] for key in ("got", "vast", "none")} == {
                "got": {"query": ["a", None, 1.5]},
                "vast": 2**70,
                "none": None,
            }
        assert fake.requests == [METHOD]


@BOTH_ERAS
async def test_vendor_method_is_unknown_elsewhere(era: str) -> None:
    async with vendor("modern") as (found, fake):
        for endpoint, method in (
            ("", METHOD),
            ("search", METHOD),
            ("server/plain", METHOD),
            ("server/full", "x-other/search"),
            ("server/full", "toolway/x"),
            ("server/full", "tools/x-acme"),
        ):
            async with client(found, era, endpoint) as raw:
                assert (await ask(raw, era, method, {})).error["code"] == -32601, (endpoint, method)
        assert fake.requests == []


@pytest.mark.parametrize("server_era", ["modern", "legacy"])
@BOTH_ERAS
async def test_notification_passes_where_the_request_does(era: str, server_era: str) -> None:
    async with vendor(server_era) as (found, fake):
        for endpoint in ("", "server/plain", "server/full"):
            async with client(found, era, endpoint) as raw:
                fields = raw.headers() | ({"mcp-protocol-version": "2026-07-28"} if era == "modern" else {})
                for method in ("x-other/y", "notifications/x-acme/changed"):
                    body = {"jsonrpc": "2.0", "method": method, "params": {"at": endpoint}}
                    assert (await raw.post(body, fields)).status == 202
        await until(lambda: fake.notifications)
        assert [(each["method"], each["params"]) for each in fake.notifications] == [
            ("notifications/x-acme/changed", {"at": "server/full"})
        ]


async def test_limited_caller_has_no_vendor_methods(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "operator")
    narrow = keyring.create_key_sync("narrow", ["some"], False, 0.0)[0]
    wide = keyring.create_key_sync("wide", ["server/full"], False, 0.0)[0]
    toolsets = {"some": ToolFilter(("full.echo",))}
    async with vendor("modern", keyring=keyring, toolsets=toolsets) as (found, fake):
        async with client(found, "modern", "server/full", wide) as raw:
            assert (await ask(raw, "modern", METHOD, {})).result["got"] == {}
        async with client(found, "modern", "some", narrow) as raw:
            assert (await ask(raw, "modern", METHOD, {})).error["code"] == -32601
        async with client(found, "modern", "server/full", narrow) as raw:
            assert (await ask(raw, "modern", METHOD, {})).status in (403, 404)
        assert fake.requests == [METHOD]


async def test_vendor_method_is_reported_and_limited_like_a_call(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "operator")
    budgets = (CallBudget.parse("2/day"),)
    token = keyring.create_key_sync("narrow", ["server/full"], False, 0.0, budgets=budgets)[0]
    async with vendor("modern", keyring=keyring) as (found, fake):
        calls = CallRecorder()
        found.hub.instrumentation.add_sink(calls)
        async with client(found, "modern", "server/full", token) as raw:
            for _ in range(2):
                assert (await ask(raw, "modern", METHOD, {})).result["got"] == {}
            assert (await ask(raw, "modern", METHOD, {})).error["data"]["code"] == "E-BUDGET"
        assert fake.requests == [METHOD] * 2
        assert [(each.server, each.method, each.effect, each.executed) for each in calls.ended] == [
            ("full", METHOD, "unsafe", "yes")
        ] * 2


async def test_vendor_method_is_unknown_under_a_policy() -> None:
    everything = PolicyEngine("permit (principal, action, resource);")
    async with vendor("modern") as (found, fake):
        found.gateway.parts.permissions.source = lambda: AccessPolicy(everything, found.hub.emit)
        found.gateway.on_access_changed()
        async with client(found, "modern", "server/full") as raw:
            assert (await ask(raw, "modern", METHOD, {})).error["code"] == -32601
            assert (await ask(raw, "modern", "tools/list", {})).result["tools"]
        assert fake.requests == []


def test_protocol_methods_never_pass() -> None:
    known = ("initialize", "ping", "tools/call", "tasks/get", "notifications/cancelled", "notifications/tools/x")
    for method in (*known, "server/discover", "toolway/x", "rpc.x", "", "x acme", "x\n", "x" * 200):
        assert not is_vendor_method(method) and not passes(method, ("*",)), method
    assert passes("x-acme/a", ("x-acme/*",)) and passes("notifications/x-acme/a", ("*",))
    assert not passes("x-acme/a", ()) and not passes("X-acme/a", ("x-acme/*",))


@pytest.mark.parametrize("value", [["tools/*"], ["toolway/x"], ["notifications/progress"], [""], ["a b"], "x/y"])
def test_invalid_vendor_methods_are_config_errors(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_entry({"command": "x", "vendorMethods": value})
    assert caught.value.code == "E-CONFIG-KEY"
    assert parse_entry({"command": "x"}).vendor_methods == ()
