"""Attempts of the second attack from outside that did not work, as properties."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import TOKEN, edge, message_of, modern
from tests.http.raw_client import connected
from tests.parts.approvals.lab import asking, call
from toolway import Hub
from toolway.parts.budgets.settings import CallBudget
from toolway.testing import FakeHttp
from toolway.workflows import Workflows
from toolway.workflows.sqlite_journal import SqliteJournal

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


@pytest.mark.attack("A2-held-1")
async def test_parallel_calls_do_not_exceed_a_budget(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token, _ = found.keyring.create_key_sync("ci", None, False, 0.0, budgets=(CallBudget.parse("25/day"),))
        calls = [found.call(f"{'ab'[number % 2]}__echo", {"text": "x"}, token=token) for number in range(80)]
        answers = await asyncio.gather(*calls)
        assert sum("result" in each for each in answers) == 25 == found.calls("a") + found.calls("b")
        assert {each["error"]["data"]["code"] for each in answers if "error" in each} == {"E-BUDGET"}


@pytest.mark.attack("A2-held-2")
@pytest.mark.parametrize("path", ["/node", "/node/link", "/node/proof", "/node/proof?x", "/node/", "/node/other"])
async def test_node_routes_are_closed_without_a_cluster(tmp_path: Path, path: str) -> None:
    link = {"Upgrade": "toolway-link", "Connection": "Upgrade"}
    async with edge(tmp_path) as found:
        key = found.key()
        for method in ("GET", "POST"):
            for fields in ({}, link):
                for token in (None, "node:forged", key, TOKEN):
                    answer = await found.ask(method, path, fields=fields, token=token)
                    assert answer.status in (400, 401, 403, 404, 405, 413), (method, fields, token)
        assert found.calls("a") == found.calls("b") == 0


@pytest.mark.attack("A2-held-3")
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_call_tool_is_limited_to_the_access_of_the_key(tmp_path: Path, era: str) -> None:
    names = (
        *(
            "b__echo",
            "b.echo",
            "B__echo",
            "a__echo ",
            " a__echo",
            "a__ECHO",
            "a__echo\x00",
            "a__ech\u043e",
            "../b__echo",
        ),
        *("server/b", "b", "", "call_tool", "search_tools", "*", "a__*"),
    )
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        session = {"Mcp-Session-Id": await found.initialize("/mcp/search", token)}

        async def call_tool(arguments: Json) -> Json:
            params: Json = {"name": "call_tool", "arguments": arguments}
            if era == "modern":
                return await found.modern("tools/call", params, path="/mcp/search", token=token)
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return message_of(await found.ask("POST", "/mcp/search", body, session, token=token))

        for name in names:
            for arguments in ({"text": "x"}, {"name": "b__echo", "arguments": {"text": "x"}}):
                answer = await call_tool({"name": name, "arguments": arguments})
                assert "error" in answer or answer["result"]["isError"], name
        nested: Json = {"name": "a__echo", "arguments": {"text": "x"}}
        for _ in range(3):
            nested = {"name": "call_tool", "arguments": nested}
        answer = await call_tool(nested)
        assert "error" in answer or answer["result"]["isError"]
        assert found.calls("a") == found.calls("b") == 0
        assert not (await call_tool({"name": "a__echo", "arguments": {"text": "x"}}))["result"].get("isError")
        assert (found.calls("a"), found.calls("b")) == (1, 0)


@pytest.mark.attack("A2-held-4")
async def test_path_with_control_bytes_reaches_no_route(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        body, head = modern("tools/list", {})
        for character in map(chr, (*range(0x20), 0x7F, 0x80, 0xA0, 0xFF)):
            for path in ("/mcp{}", "/{}mcp", "/admin{}/servers", "/mcp/{}search"):
                async with connected(found.port) as client:
                    answer = await client.ask(found.request("POST", path.format(character), body, head))
                    assert answer.status in (400, 404, 405, 505), (character, path)


@pytest.mark.attack("A2-held-5")
async def test_mismatch_of_header_and_body_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        body, head = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        for changed in ({"Mcp-Name": "add"}, {"Mcp-Name": ""}, {"Mcp-Method": "tools/list"}, {"Mcp-Method": ""}):
            for warm in (False, True):  # after a right call too, which has a plan
                if warm:
                    assert (await found.ask("POST", "/mcp/server/a", body, head, token=token)).status == 200
                before = found.calls("a")
                answer = await found.ask("POST", "/mcp/server/a", body, {**head, **changed}, token=token)
                assert answer.status == 400 and found.calls("a") == before, changed


@pytest.mark.attack("A2-held-6")
async def test_batch_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        token = found.key("server/a")
        session = {"Mcp-Session-Id": await found.initialize("/mcp/server/a", token)}
        body, head = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        for fields in (head, session, {}):
            for batch in ([body], [body] * 5, [], [[body]]):
                data = json.dumps(batch).encode()
                answer = await found.ask("POST", "/mcp/server/a", data, fields, token=token)
                assert answer.status == 400, (fields, answer)
        assert found.calls("a") == found.calls("b") == 0


@pytest.mark.attack("A2-held-7")
async def test_approval_is_used_once_by_parallel_calls(tmp_path: Path) -> None:
    async with asking(tmp_path, {"bank.*": "operator"}) as lab, lab.raw("server/bank") as raw:
        arguments = {"text": "pay"}
        first = await call(raw, "modern", "echo", arguments)
        await lab.gate.decide(first.error["data"]["approvalId"], "approved", "")
        answers = await asyncio.gather(*(call(raw, "modern", "echo", arguments) for _ in range(30)))
        assert sum("result" in each.last for each in answers) == 1 == lab.executed()


@pytest.mark.attack("A2-held-8")
async def test_long_search_query_is_rejected(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        for query in ("echo " * 300, "x" * 100_000, "\u0301" * 5_000):
            params = {"name": "search_tools", "arguments": {"query": query}}
            answer = await found.modern("tools/call", params, path="/mcp/search")
            assert "error" in answer or answer["result"]["isError"], query[:20]
        params = {"name": "search_tools", "arguments": {"query": "echo"}}
        assert not (await found.modern("tools/call", params, path="/mcp/search"))["result"].get("isError")


@pytest.mark.attack("A2-held-9")
async def test_expression_in_an_input_or_result_is_not_evaluated(tmp_path: Path) -> None:
    pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")
    evil = "${inputs.secret} ${steps.second.text} {{inputs.secret}}"
    steps = [
        {"name": "first", "tool": "demo.echo", "params": {"text": "${inputs.text}"}},
        {"name": "second", "tool": "demo.echo", "params": {"text": "${steps.first.text}"}},
    ]
    body = {"steps": steps, "outputs": {"text": "${steps.second.text}"}}
    async with (
        FakeHttp() as fake,
        Hub({"demo": fake.url}, catalog_storage=None) as hub,
        Workflows(hub, SqliteJournal(None)) as workflows,
    ):
        run = await workflows.start(body, {"text": evil, "secret": "s3cr3t"})
        assert await run.result() == {"text": evil}
