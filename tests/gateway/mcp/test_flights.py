"""Calls without a task: taken if everything is usual, handed to the pipeline if not, and never sent twice."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.bridge_lab import Lab, Raw, full, lab, made
from toolway.gateway.mcp.call_reader import ClientCall
from toolway.gateway.mcp.dispatcher import RequestDispatcher
from toolway.gateway.mcp.errors import SHUTTING_DOWN
from toolway.gateway.mcp.flights import ClientFlights, HeadPlan
from toolway.gateway.principals import LOCAL_ADMIN, FileApiKeyStore
from toolway.hub.flight import Flights
from toolway.parts.search.runtime import SearchRuntime
from toolway.protocol.constants import INVALID_PARAMS
from toolway.testing import FakeHttp, fake_server

pytestmark = pytest.mark.anyio
SERVERS = ("http", "pipe")
UNKNOWN = -31005
ERAS = ("modern", "legacy")
EITHER_CLIENT = pytest.mark.parametrize("client", ERAS)
ALL_ERAS = pytest.mark.parametrize(("client", "server"), list(itertools.product(ERAS, ERAS)))


class Ways:
    """One gateway before a modern HTTP server and a modern process, which count what they execute."""

    def __init__(self, found: Lab, raw: Raw, effects: Path, fake: FakeHttp) -> None:
        self.lab = found
        self.raw = raw
        self.fake = fake
        self._effects = effects

    @property
    def flights(self) -> Flights:
        return self.lab.hub.calls.flights

    async def call(self, name: str, **arguments: Any) -> Any:
        if self.raw.session is not None:
            return await self.raw.request("tools/call", {"name": name, "arguments": arguments})
        return await self.raw.call(name, arguments, capabilities={})

    async def warm_up(self, name: str, **arguments: Any) -> None:
        """The first call has no plan, and an HTTP server has no idle connection yet."""
        for _ in range(3):
            await self.call(name, **arguments)

    def executed(self, nonce: str) -> int:
        lines = self._effects.read_text().splitlines() if self._effects.exists() else []
        return sum(nonce in line for line in lines)

    async def until_executed(self, nonce: str, times: int) -> None:
        await until(lambda: self.executed(nonce) == times)

    async def settled(self) -> None:
        """Nothing is running any more, and nothing is held."""
        hub = self.lab.hub
        limiters, upstreams = [hub.servers.upstreams.limiters.get(name) for name in SERVERS], hub._upstreams.upstreams
        await until(lambda: all(limiter is not None and limiter.in_use == 0 for limiter in limiters))
        await until(lambda: not any(upstreams[name].is_busy for name in SERVERS))
        await until(lambda: not hub.calls.running())
        assert len(self.flights) == 0
        await until(lambda: not self.lab.gateway.legacy_sessions.has_active_requests)
        await until(lambda: not self.lab.gateway.router._active_requests)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def open_ways(
    tmp_path: Path, *modes: str, client: str = "modern", server: str = "modern", answer: str = "json"
) -> AsyncIterator[Ways]:
    effects = tmp_path / "effects"
    async with FakeHttp(modes=modes, era=server, answer=answer, effects=str(effects)) as fake:
        pipe = fake_server(*modes, era=server, effects=str(effects))
        async with lab({"http": {"url": fake.url}, "pipe": pipe}) as found, found.raw("") as raw:
            if client == "legacy":
                await raw.initialize()
            yield Ways(found, raw, effects, fake)


async def test_plain_call_is_a_flight_and_any_other_is_not(tmp_path: Path) -> None:
    async with open_ways(tmp_path) as ways:
        for server in SERVERS:
            await ways.warm_up(f"{server}__add", a=1, b=2)
            before = ways.flights.landed
            answers = [await ways.call(f"{server}__add", a=number, b=1) for number in range(5)]
            assert [json.loads(each.result["content"][0]["text"]) for each in answers] == [1, 2, 3, 4, 5]
            assert len({each.headers["x-request-id"] for each in answers}) == 5
            assert all(each.result["resultType"] == "complete" for each in answers)
            assert (ways.flights.landed - before, ways.flights.taken_over) == (5, 0)

            await ways.warm_up(f"{server}__fail", text="x")
            before = ways.flights.landed
            assert (await ways.call(f"{server}__fail", text="no")).result["isError"] is True
            assert ways.flights.landed - before == 1

            before = ways.flights.landed
            wrong = await ways.call(f"{server}__add", a="one", b=2)  # rejected before it is sent
            assert wrong.result["_meta"]["toolway"]["executed"] == "no"
            with_key = await ways.raw.call(f"{server}__add", {"a": 1, "b": 1}, meta={"toolway/idempotencyKey": "k"})
            with_timeout = await ways.raw.call(f"{server}__add", {"a": 1, "b": 1}, meta={"toolway/timeoutMs": 900})
            assert "result" in with_key.last
            assert "result" in with_timeout.last
            assert ways.flights.landed == before
        await ways.settled()


async def test_complete_tool_list_is_sent_without_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_task = 0
    list_items = RequestDispatcher._list_items

    def count(*arguments: Any) -> Any:
        nonlocal in_task
        in_task += 1
        return list_items(*arguments)

    monkeypatch.setattr(RequestDispatcher, "_list_items", count)
    async with open_ways(tmp_path) as ways:
        first = await ways.raw.ask("tools/list")
        assert in_task == 1
        answers = [await ways.raw.ask("tools/list") for _ in range(5)]
        assert in_task <= 2  # the head is known from the second request on
        assert all(each.result == first.result for each in answers)
        assert len({each.headers["x-request-id"] for each in answers}) == 5

        before = in_task
        assert (await ways.raw.ask("tools/list", {"cursor": "x"})).error["code"] == INVALID_PARAMS
        assert in_task == before + 1
        await ways.call("pipe__change_tools")
        count_before = len(first.result["tools"])
        async with asyncio.timeout(30):
            while len((await ways.raw.ask("tools/list")).result["tools"]) == count_before:
                await asyncio.sleep(0.02)
        ways.lab.gateway.router.rejects_new_requests = True
        assert (await ways.raw.ask("tools/list")).error["code"] == SHUTTING_DOWN
        ways.lab.gateway.router.rejects_new_requests = False
        await ways.settled()


async def test_call_tool_call_is_a_flight_of_the_named_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[bytes] = []

    def find_named(self: ClientFlights, planned: HeadPlan, call: ClientCall) -> Any:
        found = find(self, planned, call)
        encoded.append(found[1].encoded_arguments if found is not None else b"")
        return found

    find = ClientFlights._find_named
    monkeypatch.setattr(ClientFlights, "_find_named", find_named)
    async with open_ways(tmp_path) as ways, ways.lab.raw("search") as raw:

        async def call(name: object, arguments: object, meta_tool: str = "call_tool") -> Any:
            return await raw.call(meta_tool, {"name": name, "arguments": arguments}, capabilities={})

        tools = ways.lab.gateway.parts.runtime("search", SearchRuntime).tools
        counts = tools.log.counts
        for server in SERVERS:
            found = await raw.call("search_tools", {"query": "sum of two numbers", "server": server}, capabilities={})
            assert f"{server}__add(" in found.result["content"][0]["text"]
            await ways.warm_up(f"{server}__add", a=1, b=2)
            await call(f"{server}__add", {"a": 1, "b": 2})
            before, counted = ways.flights.landed, counts.calls["call_tool"]
            answers = [await call(f"{server}__add", {"a": number, "b": 1}) for number in range(5)]
            assert [json.loads(each.result["content"][0]["text"]) for each in answers] == [1, 2, 3, 4, 5]
            assert (ways.flights.landed - before, ways.flights.taken_over) == (5, 0)
            assert counts.calls["call_tool"] - counted == 5
            event = ways.lab.gateway.activity.calls.find(answers[-1].headers["x-request-id"])
            assert event is not None and (event.server, event.tool, event.outcome) == (server, "add", "ok")
            assert tools.log.open_query(LOCAL_ADMIN.id, (server, "add")) is None  # learned: the search was met

            # A body without spaces: the arguments are passed on as they were received, even if their order is unusual.
            for arguments in ('{"b":1,"a":6}', '{"a":7,"b":1}', '{"a":8,"b":1}'):
                named = {"name": f"{server}__add", "arguments": json.loads(arguments)}
                body, fields = raw.modern("tools/call", {"name": "call_tool", "arguments": named}, capabilities={})
                content = json.dumps(body, separators=(",", ":"))
                compact = await raw.http.post(raw.url, content=content, headers=fields)
                assert compact.json()["result"]["content"][0]["text"] == str(sum(json.loads(arguments).values()))
            assert encoded[-2:] == [b'{"a":7,"b":1}', b'{"a":8,"b":1}']

            # Everything else is for the pipeline, which explains it.
            before = ways.flights.landed
            wrong = (await call(f"{server}__add", {"a": "one"})).result
            assert wrong["isError"] is True and wrong["structuredContent"]["inputSchema"]["type"] == "object"
            assert (await call(f"{server}__none", {})).result["isError"] is True
            assert (await call("search_tools", {})).result["isError"] is True
            assert (await call(7, {})).result["isError"] is True
            assert (await call(f"{server}__add", [1])).result["isError"] is True
            refused = (await call(f"{server}__counter", {"call": "c", "nonce": "never"}, "read_tool")).result
            assert "may change something" in refused["content"][0]["text"] and ways.executed("never") == 0
            assert (await raw.call("call_tool", {"name": f"{server}__add", "a": 1}, capabilities={})).result["isError"]
            assert ways.flights.landed == before
        await ways.settled()


async def test_long_call_tool_call_is_taken_over_and_learned(tmp_path: Path) -> None:
    async with open_ways(tmp_path) as ways, ways.lab.raw("search") as raw:
        await ways.warm_up("http__counter", call="warm", nonce="warm")
        await raw.call("search_tools", {"query": "counter", "server": "http"}, capabilities={})
        log = ways.lab.gateway.parts.runtime("search", SearchRuntime).tools.log
        assert log.open_query(LOCAL_ADMIN.id, ("http", "counter")) == "counter"
        await raw.call("call_tool", {"name": "http__add", "arguments": {"a": 1, "b": 2}}, capabilities={})
        before = ways.flights.taken_over
        arguments = {"call": "c", "seconds": 2.5, "nonce": "long"}
        answer = await raw.call("call_tool", {"name": "http__counter", "arguments": arguments}, capabilities={})
        assert answer.result["resultType"] == "complete"
        assert ways.flights.taken_over == before + 1 and ways.executed("long") == 1
        assert log.open_query(LOCAL_ADMIN.id, ("http", "counter")) is None
        await ways.settled()


async def test_flight_emits_the_events_of_a_call(tmp_path: Path) -> None:
    async with open_ways(tmp_path) as ways:
        await ways.warm_up("http__add", a=1, b=2)
        before, seen = ways.flights.landed, ways.lab.gateway.activity
        answer = await ways.call("http__add", a=20, b=3)
        assert ways.flights.landed == before + 1
        event = seen.calls.find(answer.headers["x-request-id"])
        assert event is not None
        assert (event.server, event.tool, event.outcome, event.executed, event.attempts) == (
            "http",
            "add",
            "ok",
            "yes",
            1,
        )
        assert [timing.number for timing in event.attempt_timings] == [1]


@ALL_ERAS
async def test_long_call_is_taken_over_and_executed_once(tmp_path: Path, client: str, server: str) -> None:
    async with open_ways(tmp_path, client=client, server=server) as ways:
        for name in SERVERS:
            await ways.warm_up(f"{name}__counter", call="warm", nonce="warm")
        before = ways.flights.taken_over
        calls = [ways.call(f"{name}__counter", call="c", seconds=6, nonce=f"long-{name}") for name in SERVERS]
        both = asyncio.gather(*calls)
        for name in SERVERS:
            await ways.until_executed(f"long-{name}", 1)
        assert [call.name for call in ways.lab.hub.calls.running()] == ["counter", "counter"]
        assert all("result" in each.last for each in await both)
        assert ways.flights.taken_over - before == 2
        assert [ways.executed(f"long-{name}") for name in SERVERS] == [1, 1]
        await ways.settled()


@pytest.mark.parametrize(
    ("mode", "executed"),
    [
        ("reset_before_response", "unknown"),
        ("cut_body", "unknown"),
        ("close_before_response", "unknown"),
        ("status=500", "unknown"),
        ("status=429", "no"),
        ("html", "unknown"),
        ("id_of_other", "unknown"),
    ],
)
async def test_failed_flight_is_reported_as_by_the_pipeline(tmp_path: Path, mode: str, executed: str) -> None:
    async with open_ways(tmp_path) as ways:
        await ways.warm_up("http__bad", mode="none", nonce="warm")
        before = ways.flights.taken_over
        answer = await ways.call("http__bad", mode=mode, effect=True, nonce="once")
        assert answer.error["data"]["executed"] == executed
        assert ways.flights.taken_over == before + 1
        assert ways.executed("once") == 1 or executed == "no"
        await ways.settled()


async def test_leaving_client_cancels_its_call(tmp_path: Path) -> None:
    async with open_ways(tmp_path) as ways:
        for server in SERVERS:
            await ways.warm_up(f"{server}__counter", call="warm", nonce="warm")
            calls = [
                asyncio.create_task(ways.call(f"{server}__counter", call="c", seconds=60, nonce=f"left-{server}"))
                for _ in range(3)
            ]
            await ways.until_executed(f"left-{server}", 3)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await ways.settled()
            assert ways.executed(f"left-{server}") == 3


@ALL_ERAS
async def test_shutdown_reports_running_flights_as_unknown(tmp_path: Path, client: str, server: str) -> None:
    async with open_ways(tmp_path, client=client, server=server) as ways:
        for name in SERVERS:
            await ways.warm_up(f"{name}__counter", call="warm", nonce="warm")
        calls = [
            asyncio.create_task(ways.call(f"{name}__counter", call="c", seconds=0.9, nonce=f"end-{name}"))
            for name in SERVERS
        ]
        await until(lambda: all(ways.executed(f"end-{name}") for name in SERVERS))
        hurry = asyncio.Event()
        hurry.set()
        await ways.lab.gateway.drain(hurry, 0, 0)
        for answer in await asyncio.gather(*calls):
            assert answer.error["data"]["executed"] == "unknown", answer.last
        assert [ways.executed(f"end-{name}") for name in SERVERS] == [1, 1]


@ALL_ERAS
async def test_flight_is_unknown_and_not_repeated_when_process_dies(tmp_path: Path, client: str, server: str) -> None:
    async with open_ways(tmp_path, client=client, server=server) as ways:
        await ways.warm_up("pipe__counter", call="warm", nonce="warm")
        call = asyncio.create_task(ways.call("pipe__counter", call="c", seconds=60, nonce="dies"))
        await until(lambda: ways.executed("dies") == 1)
        ways.lab.hub.servers.restart("pipe")
        answer = await call
        assert answer.error["data"]["executed"] == "unknown"
        assert ways.executed("dies") == 1
        await ways.settled()


# -- servers that answer with events ----------------------------------------------------------------------------------


@ALL_ERAS
async def test_call_answered_with_events_is_a_flight(tmp_path: Path, client: str, server: str) -> None:
    async with open_ways(tmp_path, client=client, server=server, answer="sse") as ways:
        await ways.warm_up("http__add", a=1, b=2)
        before = ways.flights.landed
        answers = [await ways.call("http__add", a=number, b=1) for number in range(5)]
        assert [json.loads(each.result["content"][0]["text"]) for each in answers] == [1, 2, 3, 4, 5]
        assert (ways.flights.landed - before, ways.flights.taken_over) == (5, 0)
        await ways.settled()


@pytest.mark.parametrize("server", ERAS)
async def test_flight_with_a_cut_stream_is_unknown_and_not_repeated(tmp_path: Path, server: str) -> None:
    async with open_ways(tmp_path, server=server, answer="sse") as ways:
        for cut in ("before", "between", "inside", "inside;clean=1"):
            await ways.warm_up("http__counter", call="warm", nonce="warm")
            before = ways.flights.taken_over
            ways.fake.endpoint.faults.add(f"cut_sse={cut};on=counter;times=1")
            answer = await ways.call("http__counter", call="c", nonce=f"cut {cut}")
            assert answer.error["data"]["executed"] == "unknown", answer.last
            assert (ways.executed(f"cut {cut}"), ways.flights.taken_over - before) == (1, 1)
        await ways.settled()


# -- legacy clients ---------------------------------------------------------------------------------------------------


@EITHER_CLIENT
async def test_call_to_a_legacy_server_is_a_flight(tmp_path: Path, client: str) -> None:
    async with open_ways(tmp_path, client=client, server="legacy") as ways:
        for name in SERVERS:
            await ways.warm_up(f"{name}__add", a=1, b=2)
            before = ways.flights.landed
            answers = [await ways.call(f"{name}__add", a=number, b=1) for number in range(5)]
            assert [json.loads(each.result["content"][0]["text"]) for each in answers] == [1, 2, 3, 4, 5]
            assert all(("resultType" in each.result) == (client == "modern") for each in answers)
            assert (ways.flights.landed - before, ways.flights.taken_over) == (5, 0)
        await ways.settled()


async def test_call_in_a_session_is_a_flight(tmp_path: Path) -> None:
    async with open_ways(tmp_path, client="legacy") as ways:
        for server in SERVERS:
            await ways.warm_up(f"{server}__add", a=1, b=2)
            before = ways.flights.landed
            answers = [await ways.call(f"{server}__add", a=number, b=1) for number in range(5)]
            assert [json.loads(each.result["content"][0]["text"]) for each in answers] == [1, 2, 3, 4, 5]
            assert all("resultType" not in each.result for each in answers)
            assert all(each.headers["content-type"] == "application/json" for each in answers)
            assert (ways.flights.landed - before, ways.flights.taken_over) == (5, 0)

            progress = {"name": f"{server}__add", "arguments": {"a": 1, "b": 1}, "_meta": {"progressToken": "p"}}
            assert "result" in (await ways.raw.request("tools/call", progress)).last
            wrong = await ways.call(f"{server}__add", a="one", b=2)
            assert wrong.result["_meta"]["toolway"]["executed"] == "no"
            assert (ways.flights.landed - before, ways.flights.taken_over) == (5, 0)
        await ways.settled()


async def test_ended_session_has_no_flights(tmp_path: Path) -> None:
    async with open_ways(tmp_path, client="legacy") as ways:
        await ways.warm_up("http__counter", call="warm", nonce="warm")
        fields = ways.raw.headers()
        assert (await ways.raw.http.delete(ways.raw.url, headers=fields)).status_code == 204
        assert (await ways.call("http__counter", call="c", nonce="ended")).status == 404
        assert ways.executed("ended") == 0
        await ways.raw.initialize()
        await ways.warm_up("http__counter", call="warm", nonce="warm")
        ways.raw.session = fields["mcp-session-id"]
        assert (await ways.call("http__counter", call="c", nonce="ended")).status == 404
        assert ways.executed("ended") == 0


async def test_id_in_use_by_a_flight_is_rejected(tmp_path: Path) -> None:
    async with open_ways(tmp_path, client="legacy") as ways:
        await ways.warm_up("pipe__counter", call="warm", nonce="warm")

        def same_id(nonce: str, seconds: float) -> Any:
            arguments = {"call": "c", "seconds": seconds, "nonce": nonce}
            body = {"jsonrpc": "2.0", "id": "same", "method": "tools/call"}
            return ways.raw.post(
                {**body, "params": {"name": "pipe__counter", "arguments": arguments}}, ways.raw.headers()
            )

        first = asyncio.create_task(same_id("first", 0.5))
        await ways.until_executed("first", 1)
        assert "already in use" in (await same_id("second", 0)).error["message"]
        assert "result" in (await first).last
        assert (ways.executed("first"), ways.executed("second")) == (1, 0)
        await ways.settled()


async def test_cancellation_ends_a_flight_without_a_response(tmp_path: Path) -> None:
    async with open_ways(tmp_path, client="legacy") as ways:
        for server in SERVERS:
            await ways.warm_up(f"{server}__counter", call="warm", nonce="warm")
            before = ways.flights.taken_over
            call = asyncio.create_task(ways.call(f"{server}__counter", call="c", seconds=60, nonce=f"no-{server}"))
            await ways.until_executed(f"no-{server}", 1)
            (id_,) = next(iter(ways.lab.gateway.legacy_sessions._sessions.values())).active_requests
            params = {"requestId": id_, "reason": "not needed"}
            cancellation = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            await ways.raw.post(cancellation, ways.raw.headers())
            answer = await call
            assert (answer.status, answer.messages) == (202, [])
            assert ways.flights.taken_over == before + 1
            await ways.settled()


async def test_lost_connection_does_not_cancel_a_session_flight(tmp_path: Path) -> None:
    async with open_ways(tmp_path, client="legacy") as ways:
        for server in SERVERS:
            await ways.warm_up(f"{server}__counter", call="warm", nonce="warm")
            call = asyncio.create_task(ways.call(f"{server}__counter", call="c", seconds=1.5, nonce=f"lost-{server}"))
            await ways.until_executed(f"lost-{server}", 1)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert ways.lab.gateway.legacy_sessions.has_active_requests
            await ways.settled()
            events = [each for each in ways.lab.gateway.activity.calls.find_newest() if each.tool == "counter"]
            assert events[0].outcome == "ok", events[0]


ALL_SERVERS = pytest.mark.parametrize(
    ("server", "transport"), list(itertools.product(ERAS, ("http", "stdio"))), ids="-".join
)


@ALL_SERVERS
async def test_log_messages_during_a_flight_reach_its_client(server: str, transport: str) -> None:
    async with full(server, transport) as found, found.raw() as raw:
        await raw.initialize()
        for _ in range(3):
            await raw.request("tools/call", {"name": "log", "arguments": {}})
        before = found.hub.calls.flights.taken_over
        answer = await raw.request("tools/call", {"name": "log", "arguments": {}})
        levels = [each["params"]["level"] for each in answer.messages[:-1]]
        assert levels
        assert all(each["method"] == "notifications/message" for each in answer.messages[:-1])
        assert "result" in answer.last
        assert found.hub.calls.flights.taken_over == before + 1


@ALL_SERVERS
async def test_elicitation_during_a_flight_reaches_its_session(server: str, transport: str) -> None:
    async with full(server, transport) as found, found.raw() as raw:
        await raw.initialize()

        async def answer(message: dict[str, Any]) -> None:
            if "method" in message and "id" in message:
                result = {"action": "accept", "content": {}}
                await raw.post({"jsonrpc": "2.0", "id": message["id"], "result": result}, raw.headers())

        for _ in range(3):  # no questions, so the tool of a legacy server counts as one that sends no requests
            await raw.request("tools/call", {"name": "ask", "arguments": {"n": 0}}, answer)
        before = found.hub.calls.flights.taken_over
        asked = await raw.request("tools/call", {"name": "ask", "arguments": {}}, answer)
        assert [each.get("method") for each in asked.messages] == ["elicitation/create", None]
        assert "result" in asked.last
        assert found.hub.calls.flights.taken_over == before + 1


@pytest.mark.parametrize("transport", ["http", "stdio"])
@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {"form": {}}}], ids=["cannot answer", "can answer"])
async def test_flight_of_a_modern_client_is_suspended_by_elicitation(
    transport: str, capabilities: dict[str, Any]
) -> None:
    async with full("legacy", transport) as found, found.raw() as raw:

        async def call(**more: Any) -> Any:
            arguments = {"n": 0} if not more else {}
            more.pop("asks", None)
            return await raw.call("ask", arguments, capabilities=capabilities, **more)

        for _ in range(3):
            assert "result" in (await call()).last
        before = found.hub.calls.flights.taken_over
        asked = await call(asks=True)
        assert found.hub.calls.flights.taken_over == before + 1
        if not capabilities:
            assert "not supported by this client" in asked.result["content"][0]["text"]
            return
        assert asked.result["resultType"] == "input_required"
        (key,) = asked.result["inputRequests"]
        answers = {key: {"action": "accept", "content": {"name": "x"}}}
        done = await call(asks=True, requestState=asked.result["requestState"], inputResponses=answers)
        assert '"accept"' in done.result["content"][0]["text"]


@EITHER_CLIENT
async def test_each_key_has_its_own_legacy_connection_in_a_flight(tmp_path: Path, client: str) -> None:
    keys = FileApiKeyStore(tmp_path / "keys.json", admin := "tw_" + "a" * 40)
    tokens = [admin, made(keys, "one"), made(keys, "two")]
    async with lab({"old": fake_server(era="legacy")}, keyring=keys) as found:
        seen: list[set[str]] = []
        for token in (*tokens, *tokens):  # each key again, after the other one
            async with found.raw("server/old", token) as raw, asyncio.timeout(30):
                if client == "legacy":
                    await raw.initialize()
                landed, pids = found.hub.calls.flights.landed, set[str]()
                while found.hub.calls.flights.landed < landed + 3:
                    answer = await (
                        raw.request("tools/call", {"name": "pid", "arguments": {}})
                        if client == "legacy"
                        else raw.call("pid", {}, capabilities={})
                    )
                    pids.add(answer.result["content"][0]["text"])
                    await asyncio.sleep(0.01)
                seen.append(pids)
        assert [len(pids) for pids in seen] == [1] * 6
        assert seen[:3] == seen[3:]
        assert len(set.union(*seen)) == 3
