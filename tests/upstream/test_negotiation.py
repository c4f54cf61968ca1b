"""Finding the era: by answers, never by silence or by a passing failure."""

from __future__ import annotations

import asyncio

import pytest
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION

from tests.upstream.scripted_transport import HANDSHAKE, MODERN, ScriptedLink
from toolway.config.schema import EraSetting
from toolway.errors import Certainty
from toolway.events import StateChanged
from toolway.hub.core import HubCore
from toolway.hub.environment import HubEnvironment
from toolway.types import Era, Json
from toolway.upstream import negotiation
from toolway.upstream.negotiation import NegotiatedProtocol, negotiate
from toolway.upstream.transport import JSONRPCError, Request, TransportError

pytestmark = pytest.mark.anyio

INFO: Json = {"name": "us"}
SILENCE = object()
UNKNOWN = JSONRPCError(-32601, "Method not found")
TOOLS: Json = {"tools": []}
Said = Json | Exception | object


class Server:
    """Says one thing to each question, once its time has come."""

    def __init__(self, discover: Said, initialize: Said = HANDSHAKE, tools: Said = UNKNOWN) -> None:
        self._says: dict[str, list[Said]] = {
            "server/discover": [discover],
            "initialize": [initialize],
            "tools/list": [tools],
        }
        self._times = {method: asyncio.Event() for method in self._says}
        for event in self._times.values():
            event.set()
        self.link = ScriptedLink(self._answer)

    def then(self, method: str, said: Said) -> Server:
        self._says[method].append(said)
        return self

    def slow(self, *methods: str) -> Server:
        for method in methods:
            self._times[method].clear()
        return self

    def now(self, method: str) -> None:
        self._times[method].set()

    async def _answer(self, request: Request) -> Json:
        await self._times[request.method].wait()
        said = self._says[request.method]
        answer = said.pop(0) if len(said) > 1 else said[0]
        if answer is SILENCE:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, dict)
        return answer

    async def agree(self, setting: EraSetting = "auto", hint: Era | None = None) -> NegotiatedProtocol:
        return await negotiate(self.link, setting, hint, INFO, {})


async def asked(server: Server, *methods: str) -> None:
    """Wait until all of these have been asked."""
    while not set(methods) <= set(server.link.methods):
        await asyncio.sleep(0)


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiation, "DISCOVER_GRACE_S", 0.001)


# -- the settings ------------------------------------------------------------------------------------------------------


async def test_modern_server_is_probed_once() -> None:
    server = Server(MODERN)
    agreed = await server.agree()
    assert (agreed.era, agreed.version) == ("modern", LATEST_MODERN_VERSION)
    assert server.link.record == ["server/discover"]


async def test_legacy_setting_skips_discover() -> None:
    server = Server(MODERN)
    agreed = await server.agree("legacy")
    assert (agreed.era, agreed.version) == ("legacy", LATEST_HANDSHAKE_VERSION)
    assert server.link.record == ["initialize", "adopt legacy", "notifications/initialized"]


async def test_modern_setting_does_not_fall_back() -> None:
    server = Server(JSONRPCError(-32601, "what?"))
    with pytest.raises(TransportError) as caught:
        await server.agree("modern")
    assert (caught.value.code, caught.value.certainty) == ("E-ERA", Certainty.REJECTED)
    assert server.link.methods == ["server/discover"]


# -- what an answer means ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32603, -32700, -32000, -32001, 0, 404])
async def test_generic_error_falls_back_to_handshake(code) -> None:
    server = Server(JSONRPCError(code, "what?"))
    assert (await server.agree()).era == "legacy"
    assert server.link.methods == ["server/discover", "initialize"]


@pytest.mark.parametrize("code", [-32020, -32021])
async def test_modern_only_error_is_raised(code) -> None:
    server = Server(JSONRPCError(code, "no"))
    with pytest.raises(JSONRPCError) as caught:
        await server.agree()
    assert caught.value.code == code
    assert server.link.methods == ["server/discover"]


async def test_version_named_in_rejection_is_used() -> None:
    refusal = JSONRPCError(-32022, "no", {"supported": ["1999-01-01", LATEST_MODERN_VERSION]})
    server = Server(refusal).then("server/discover", MODERN)
    assert (await server.agree()).era == "modern"
    assert [request.version for request in server.link.asked] == [LATEST_MODERN_VERSION] * 2


async def test_rejection_naming_only_legacy_uses_handshake() -> None:
    server = Server(JSONRPCError(-32022, "no", {"supported": [HANDSHAKE_PROTOCOL_VERSIONS[0]]}))
    assert (await server.agree()).era == "legacy"


@pytest.mark.parametrize("data", [None, {}, {"supported": []}, {"supported": ["2099-01-01"]}, {"supported": "x"}, "x"])
async def test_rejection_without_known_version_is_raised(data) -> None:
    server = Server(JSONRPCError(-32022, "no", data))
    with pytest.raises(JSONRPCError):
        await server.agree()
    assert server.link.methods == ["server/discover"]


@pytest.mark.parametrize("result", [{}, {"supportedVersions": []}, {"supportedVersions": "all"}, {"tools": []}])
async def test_result_without_modern_version_uses_handshake(result) -> None:
    assert (await Server(result).agree()).era == "legacy"


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 422])
async def test_http_rejection_falls_back_to_handshake(status) -> None:
    assert (await Server(TransportError("no", Certainty.REJECTED, status=status)).agree()).era == "legacy"


@pytest.mark.parametrize("status", [401, 403, 407, 408, 421, 425, 429, 500, 502, 503, 302, None])
async def test_inconclusive_http_failure_fails_start(status) -> None:
    server = Server(TransportError("no", Certainty.REJECTED, status=status))
    with pytest.raises(TransportError):
        await server.agree()
    assert server.link.methods == ["server/discover"]


async def test_handshake_error_is_raised_when_both_are_rejected() -> None:
    with pytest.raises(JSONRPCError) as caught:
        await Server(JSONRPCError(-32601, "what?"), JSONRPCError(-32603, "broken")).agree()
    assert caught.value.code == -32603


# -- what was spoken last time -----------------------------------------------------------------------------------------


async def test_server_known_as_legacy_starts_with_handshake() -> None:
    server = Server(SILENCE)
    assert (await server.agree(hint="legacy")).era == "legacy"
    assert server.link.methods == ["initialize"]


async def test_server_known_as_modern_is_probed_again() -> None:
    server = Server(MODERN)
    assert (await server.agree(hint="modern")).era == "modern"


@pytest.mark.parametrize("code", [-32601, -32020, -32021, -32022])
async def test_legacy_server_that_became_modern_is_detected(code) -> None:
    server = Server(MODERN, JSONRPCError(code, "no"))
    assert (await server.agree(hint="legacy")).era == "modern"
    assert server.link.methods == ["initialize", "server/discover"]


async def test_other_handshake_error_of_known_legacy_server_is_raised() -> None:
    server = Server(MODERN, JSONRPCError(-32603, "broken"))
    with pytest.raises(JSONRPCError):
        await server.agree(hint="legacy")
    assert server.link.methods == ["initialize"]


# -- silence -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_grace")
async def test_handshake_answered_first_wins_after_silence() -> None:
    server = Server(SILENCE)
    assert (await server.agree()).era == "legacy"
    assert server.link.methods == ["server/discover", "initialize"]
    assert server.link.cancelled == ["server/discover"]


@pytest.mark.usefixtures("no_grace")
async def test_discover_answered_first_wins_after_silence() -> None:
    server = Server(MODERN, SILENCE).slow("server/discover")
    agreeing = asyncio.ensure_future(server.agree())
    await asked(server, "initialize")
    server.now("server/discover")
    assert (await agreeing).era == "modern"
    assert server.link.cancelled == ["initialize"]


@pytest.mark.usefixtures("no_grace")
async def test_rejected_handshake_keeps_waiting_for_discover() -> None:
    server = Server(MODERN, JSONRPCError(-32601, "what?")).slow("server/discover")
    agreeing = asyncio.ensure_future(server.agree())
    await asked(server, "initialize")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not agreeing.done()
    server.now("server/discover")
    assert (await agreeing).era == "modern"


@pytest.mark.usefixtures("no_grace")
async def test_late_discover_error_waits_for_pending_handshake() -> None:
    server = Server(JSONRPCError(-32601, "what?")).slow("server/discover", "initialize")
    agreeing = asyncio.ensure_future(server.agree())
    await asked(server, "initialize")
    server.now("server/discover")
    await asyncio.sleep(0.001)
    assert not agreeing.done()
    server.now("initialize")
    assert (await agreeing).era == "legacy"
    assert server.link.methods == ["server/discover", "initialize"]


@pytest.mark.usefixtures("no_grace")
async def test_late_discover_failure_fails_start_and_cancels_handshake() -> None:
    server = Server(TransportError("reset", Certainty.UNKNOWN), SILENCE).slow("server/discover")
    before = asyncio.all_tasks()
    agreeing = asyncio.ensure_future(server.agree())
    await asked(server, "initialize")
    server.now("server/discover")
    with pytest.raises(TransportError):
        await agreeing
    assert server.link.cancelled == ["initialize"]
    assert asyncio.all_tasks() == before


@pytest.mark.usefixtures("no_grace")
async def test_cancelled_negotiation_cancels_both_probes() -> None:
    server = Server(SILENCE, SILENCE)
    before = asyncio.all_tasks()
    agreeing = asyncio.ensure_future(server.agree())
    await asked(server, "initialize")
    agreeing.cancel()
    await asyncio.gather(agreeing, return_exceptions=True)
    assert sorted(server.link.cancelled) == ["initialize", "server/discover"]
    assert asyncio.all_tasks() == before


# -- no handshake ------------------------------------------------------------------------------------------------------


async def test_server_without_handshake_that_lists_tools_is_bare() -> None:
    server = Server(UNKNOWN, UNKNOWN, TOOLS)
    agreed = await server.agree()
    assert (agreed.era, agreed.version, agreed.capabilities) == ("bare", "", {"tools": {}})
    assert server.link.record == ["server/discover", "initialize", "tools/list"]  # and no notification


@pytest.mark.parametrize("status", [400, 404, 422, 501])
async def test_http_rejected_handshake_with_tools_list_is_bare(status) -> None:
    refusal = TransportError("no", Certainty.UNKNOWN, status=status)
    assert (await Server(UNKNOWN, refusal, TOOLS).agree()).era == "bare"


@pytest.mark.parametrize("tools", [UNKNOWN, {}, {"tools": 7}, TransportError("reset", Certainty.UNKNOWN)])
async def test_server_without_handshake_or_tools_fails_start(tools) -> None:
    with pytest.raises(JSONRPCError) as caught:
        await Server(UNKNOWN, UNKNOWN, tools).agree()
    assert caught.value.code == -32601


@pytest.mark.parametrize("code", [-32600, -32602, -32603, -32000])
async def test_other_handshake_error_does_not_try_bare(code) -> None:
    server = Server(UNKNOWN, JSONRPCError(code, "no"), TOOLS)
    with pytest.raises(JSONRPCError):
        await server.agree()
    assert "tools/list" not in server.link.methods


async def test_bare_setting_sends_nothing() -> None:
    server = Server(MODERN)
    assert (await server.agree("bare")).era == "bare"
    assert server.link.record == []


@pytest.mark.usefixtures("no_grace")
async def test_silent_handshake_with_tools_list_is_bare() -> None:
    server = Server(SILENCE, SILENCE, TOOLS)
    before = asyncio.all_tasks()
    assert (await server.agree()).era == "bare"
    assert server.link.record == ["server/discover", "initialize", "tools/list"]
    assert sorted(server.link.cancelled) == ["initialize", "server/discover"]
    assert asyncio.all_tasks() == before


@pytest.mark.usefixtures("no_grace")
async def test_slow_server_that_answers_everything_is_not_bare() -> None:
    server = Server(UNKNOWN, HANDSHAKE, TOOLS).slow("server/discover", "initialize", "tools/list")
    agreeing = asyncio.ensure_future(server.agree())
    await asked(server, "tools/list")
    for method in ("tools/list", "server/discover", "initialize"):
        server.now(method)
    assert (await agreeing).era == "legacy"


@pytest.mark.usefixtures("no_grace")
async def test_rejected_tools_list_keeps_waiting_for_handshake() -> None:
    server = Server(SILENCE, HANDSHAKE, UNKNOWN).slow("initialize")
    agreeing = asyncio.ensure_future(server.agree())
    await asked(server, "tools/list")
    await asyncio.sleep(0.001)
    assert not agreeing.done()
    server.now("initialize")
    assert (await agreeing).era == "legacy"


async def test_server_known_as_bare_is_probed_again_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negotiation, "KNOWN_BARE_GRACE_S", 0.001)
    assert (await Server(SILENCE, SILENCE, TOOLS).agree(hint="bare")).era == "bare"
    assert (await Server(UNKNOWN, HANDSHAKE, TOOLS).agree(hint="bare")).era == "legacy"
    assert (await Server(MODERN, UNKNOWN, TOOLS).agree(hint="bare")).era == "modern"


# -- what is agreed ----------------------------------------------------------------------------------------------------


async def test_modern_server_info_is_kept() -> None:
    said = MODERN | {
        "capabilities": {"tools": {}},
        "instructions": "be kind",
        "_meta": {SERVER_INFO_META_KEY: {"name": "new"}},
    }
    agreed = await Server(said).agree()
    assert (agreed.capabilities, agreed.instructions, agreed.server_info) == ({"tools": {}}, "be kind", {"name": "new"})


async def test_legacy_server_info_is_kept() -> None:
    agreed = await Server(MODERN, HANDSHAKE | {"instructions": "be kind"}).agree("legacy")
    assert (agreed.server_info, agreed.instructions) == ({"name": "old"}, "be kind")


@pytest.mark.parametrize("setting", ["auto", "legacy"])
async def test_server_info_of_wrong_type_is_ignored(setting) -> None:
    wrong: Json = {"capabilities": 7, "instructions": ["x"], "serverInfo": "me", "_meta": [1]}
    agreed = await Server(MODERN | wrong, HANDSHAKE | wrong).agree(setting)
    assert (agreed.capabilities, agreed.instructions, agreed.server_info) == ({}, "", {})


@pytest.mark.parametrize("version", ["0.1.0", "1999-01-01", LATEST_MODERN_VERSION, 7, None, "x" * 1000, "\x1b[31m"])
@pytest.mark.promise("D5")
async def test_unknown_protocol_version_is_rejected(version) -> None:
    server = Server(MODERN, HANDSHAKE | {"protocolVersion": version})
    with pytest.raises(TransportError) as caught:
        await server.agree("legacy")
    assert (caught.value.code, caught.value.certainty) == ("E-VERSION", Certainty.REJECTED)
    assert "\x1b" not in caught.value.reason and len(caught.value.reason) < 200
    assert server.link.record == ["initialize"]


@pytest.mark.parametrize("version", HANDSHAKE_PROTOCOL_VERSIONS)
async def test_every_handshake_version_is_accepted(version) -> None:
    agreed = await Server(MODERN, HANDSHAKE | {"protocolVersion": version}).agree("legacy")
    assert agreed.version == version


async def test_dropped_probes_cancel_silently() -> None:
    server = Server(JSONRPCError(-32601, "what?"))
    await server.agree()
    assert all(request.silent_cancel for request in server.link.asked)


async def test_start_after_detection_timeout_begins_with_handshake() -> None:
    links: list[ScriptedLink] = []

    def open_link(*_: object) -> ScriptedLink:
        links.append(Server(SILENCE, HANDSHAKE, TOOLS).link)
        return links[-1]

    definition = {"command": "old", "startTimeout": 0.2}  # shorter than the silence that decides
    environment = HubEnvironment(create_transport=open_link)
    async with HubCore({"old": definition}, catalog_storage=None, environment=environment) as hub:
        async for event in hub.events(StateChanged):
            if isinstance(event, StateChanged) and event.new == "ready":
                break
        assert hub.servers.status()["old"].era == "legacy"
    assert [link.methods[0] for link in links] == ["server/discover", "initialize"]
