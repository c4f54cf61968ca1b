"""Attempts of a hostile model, or of a hostile provider, against the agent that asks it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

from tests.workflows.kill_runner import SERVER_FILE
from toolway import Hub
from toolway.agents import Agent, Budget
from toolway.agents.replay import replay_run
from toolway.agents.transcript import read_messages
from toolway.testing import FakeHttp, FakeLLM, LLMRequest, ToolUse, Turn
from toolway.workflows.engine import WorkflowError
from toolway.workflows.journal import FINAL_STATES, RunRecord

Json = dict[str, Any]
pytestmark = pytest.mark.anyio
KEYS = {name: f"sk-{name.lower()}-0123456789" for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY")}
ADD = ToolUse("demo__add", {"a": 1, "b": 2})
PROVIDERS = {
    "openai-chat:gpt-4o": "/v1",
    "openai:gpt-4o": "/v1",
    "anthropic:claude-sonnet-5": "",
    "google:gemini-2.5-flash": "",
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("toolway.agents.journalled_model.MAX_WAIT_S", 0.01)


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with FakeHttp() as fake, Hub({"demo": fake.url}, catalog_storage=None) as hub:
        await hub.wait_ready()
        yield hub


async def run_agent(hub: Hub, url: str, model: str = "openai-chat:gpt-4o", **options: Any) -> tuple[RunRecord, Json]:
    """Run an agent to its end; return its record and what its journal shows of it."""
    async with Agent(model, hub, **{"approve": "none", **options}, base_url=url) as agent:
        run = await agent.start("Go")
        record = await run.wait()
        assert agent._workflows is not None
        _, _, entries, messages = await agent._workflows.load(run.id)
        replayed = await replay_run(record, entries, messages)
        return record, {"messages": read_messages(record, entries), "replayed": replayed}


class _Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Callable[[_Provider], tuple[int, Json, bytes]]
    seen: list[_Provider]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(self)
        status, headers, body = type(self).answer(self)
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def provider(answer: Callable[[_Provider], tuple[int, Json, bytes]]) -> Iterator[tuple[str, list[_Provider]]]:
    """Yield the URL of a provider whose answers are these, and the requests that it has received."""
    seen: list[_Provider] = []
    handler = type("Handler", (_Provider,), {"answer": staticmethod(answer), "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


def always(headers: Json, body: bytes) -> Callable[[_Provider], tuple[int, Json, bytes]]:
    return lambda each: (200, headers, body)


def completion(number: int, *, model: str = "gpt-4o", usage: Json | None = None, text: str = "") -> Json:
    """An answer of the API for chat completions: a text, or without one a call with other arguments each time."""
    message: Json = {"role": "assistant", "content": text or None}
    if not text:
        function = {"name": "demo__add", "arguments": json.dumps({"a": number, "b": 0})}
        message["tool_calls"] = [{"id": f"call{number}", "type": "function", "function": function}]
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop" if text else "tool_calls"}],
        "usage": usage or {"prompt_tokens": 500_000, "completion_tokens": 0, "total_tokens": 500_000},
    }


# -- budgets -----------------------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NH1")
@pytest.mark.parametrize("name", ["gpt-4o", "my-deployment"])
@pytest.mark.parametrize("prices", [{}, {"gpt-4o": (2.5, 10.0)}], ids=["table", "own"])
async def test_usd_budget_is_kept_for_unpriced_models(hub: Hub, name: str, prices: Any) -> None:
    with provider(lambda each: (200, {}, json.dumps(completion(len(each.seen), model=name)).encode())) as (url, seen):
        record, _ = await run_agent(hub, f"{url}/v1", budget=Budget(usd=2.0, requests=9), prices=prices)
    assert record.error is not None and record.error["code"] == "E-AGENT-BUDGET"
    assert "2 usd" in record.error["message"] and len(seen) == 2  # 1.25 USD each


@pytest.mark.attack("A2-NH1")
@pytest.mark.filterwarnings("ignore:Failed to extract usage")
@pytest.mark.parametrize("tokens", [0, -1_000_000])
@pytest.mark.parametrize("budget", [Budget(tokens=1500, requests=40), Budget(usd=0.005, requests=40)])
async def test_impossible_usage_numbers_do_not_exceed_a_budget(hub: Hub, tokens: int, budget: Budget) -> None:
    usage = {"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": 0}
    with provider(lambda each: (200, {}, json.dumps(completion(len(each.seen), usage=usage)).encode())) as (url, seen):
        record, _ = await run_agent(hub, f"{url}/v1", tools=["demo.*"], budget=budget)
    assert record.error is not None
    assert "requests" not in record.error["message"] and len(seen) < 20
    assert record.error["usage"]["input_tokens"] == 0 < record.error["usage"]["uncounted_tokens"]


@pytest.mark.attack("A2-NH3")
@pytest.mark.parametrize("kind", ["read_result", "search_tools", "demo__add"])
async def test_answer_may_contain_128_calls_at_most(hub: Hub, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    arguments: dict[str, Callable[[int], Json]] = {
        "read_result": lambda number: {"handle": "1.1", "offset": number},
        "search_tools": lambda number: {"query": f"add {number}"},
        "demo__add": lambda number: {"a": number, "b": 0},
    }
    if kind == "search_tools":
        monkeypatch.setattr("toolway.agents.hub_toolset.MAX_TOOLS", 0)  # so tools are searched
    first = ToolUse("search_tools", {"query": "echo"})
    if kind != "search_tools":
        first = ToolUse("demo__echo", {"text": "x" * 30_000})
    flood = [ToolUse(kind, arguments[kind](number)) for number in range(200)]
    with FakeLLM([Turn(calls=[first]), Turn(calls=flood), "Done."]) as llm:
        record, _ = await run_agent(hub, llm.openai_url)
    assert record.state == "done", record.error
    results = [each.text for each in llm.requests[2].results]
    assert [("an answer may contain 128 calls" in text) for text in results] == [False] * 128 + [True] * 72


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NH4")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_unreadable_arguments_neither_end_nor_hide_a_run(hub: Hub, stream: bool) -> None:
    texts = [
        '{"a": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"a": ' + "[" * 190 + "]" * 190 + "}",
        *("null", " null ", "", "7", '"x"', "[]", "{", '{"a": 1', '{"a": "\\ud800", "b": 1}'),
        *('{"a": NaN, "b": Infinity}', '{"a": 1e999, "b": 1}', '{"a": 1' + "0" * 5000 + ', "b": 1}'),
        '{"a": "' + "x" * 1_000_000 + '", "b": 1}',
    ]
    for text in texts:
        with FakeLLM([Turn(calls=[ToolUse("demo__add", text), ADD]), "Done."]) as llm:
            record, shown = await run_agent(hub, llm.openai_url, stream=stream)
        assert (record.state, len(llm.requests)) == ("done", 2), (text[:40], record.error)
        assert llm.requests[1].results[1].text == "3"
        assert [each["role"] for each in shown["messages"]].count("assistant") == 2
        assert shown["replayed"].output == record.output, text[:40]


@pytest.mark.attack("A2-NH4")
async def test_approval_is_used_once_despite_repeated_call_ids(hub: Hub) -> None:
    """The id is the model's: two calls never share a step, and so never an approval or a result."""
    ids = ["toolway_1_3", "toolway_1_2", "toolway_1_3", "toolway_1_3", "", "toolway_1_5"]
    calls = [ToolUse("demo__add", {"a": number, "b": 0}, id=id_) for number, id_ in enumerate(ids)]
    with FakeLLM([Turn(calls=calls), "Done."]) as llm:
        async with Agent("openai-chat:gpt-4o", hub, approve="all", base_url=llm.openai_url) as agent:
            run = await agent.start("Go")
            asked: dict[str, str] = {}
            while len(asked) < len(ids):
                record = await run.wait()
                assert record.state not in FINAL_STATES, record.error
                for each in record.asks:
                    if each["path"] not in asked:
                        with contextlib.suppress(WorkflowError):  # the run continues with another answer: ask again
                            await run.approve(each["path"], yes=each["path"] == "tool/1.3/approve")
                            asked[each["path"]] = each["title"]
                await asyncio.sleep(0.01)
            result = await run.result()
    assert sorted(asked.values()) == [f'demo.add {{"a":{number},"b":0}}' for number in range(len(ids))]
    assert [each["arguments"]["a"] for each in result.tool_calls if each["executed"] == "yes"] == [2]


@pytest.mark.attack("A2-held-H1")
@pytest.mark.parametrize("searches", [False, True])
async def test_tool_that_was_not_offered_is_not_called(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, searches: bool
) -> None:
    if searches:
        monkeypatch.setattr("toolway.agents.hub_toolset.MAX_TOOLS", 0)
    names = ["demo__echo", "demo.echo", "demo.add", "DEMO__ADD", "demo__add ", "add", "*", "", "call_tool", "agent__x"]
    hidden = ["read_result", "demo__add"] if searches else ["read_result", "search_tools"]
    for name in (*names, *hidden):
        with FakeLLM([Turn(calls=[ToolUse(name, {"a": 1, "b": 2, "text": "x"})]), "Done."]) as llm:
            record, _ = await run_agent(hub, llm.openai_url, tools=["demo.add"])
        assert (record.state, record.output["tool_calls"]) == ("done", []), name
        assert set(llm.requests[0].tools) == ({"search_tools"} if searches else {"demo__add"})


# -- approvals ---------------------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NH5")
@pytest.mark.parametrize("size", [300, 5_000, 60_000])
async def test_approval_shows_all_arguments_printably(hub: Hub, size: int) -> None:
    text = "x" * size + "\u202e\x9b31m\U000e0041 to the attacker"
    with FakeLLM([Turn(calls=[ToolUse("demo__echo", {"text": text})]), "Done."]) as llm:
        record, _ = await run_agent(hub, llm.openai_url, approve="all")
    title = record.asks[0]["title"]
    assert title.startswith("demo.echo {") and title.isprintable()
    assert json.loads(title.removeprefix("demo.echo ")) == {"text": text}


@pytest.mark.attack("A2-NH5")
async def test_call_too_long_to_review_is_not_executed(hub: Hub) -> None:
    with FakeLLM([Turn(calls=[ToolUse("demo__echo", {"text": "x" * 70_000})]), "Done."]) as llm:
        record, _ = await run_agent(hub, llm.openai_url, approve="all")
    assert record.output["tool_calls"][0]["executed"] == "no"
    assert "would have to read 70" in llm.requests[1].results[0].text


# -- providers ---------------------------------------------------------------------------------------------------------


@pytest.mark.attack("A2-NH2")
@pytest.mark.parametrize("model", PROVIDERS)
async def test_compressed_answer_is_rejected(hub: Hub, model: str) -> None:
    bomb = gzip.compress(b" " * 10_000_000 + json.dumps(completion(1, text="Done.")).encode())
    for encoding in ("gzip", "GZIP", "deflate, gzip", "br"):
        with provider(always({"Content-Encoding": encoding}, bomb)) as (url, seen):
            record, _ = await run_agent(hub, url + PROVIDERS[model], model)
        assert record.error is not None and "compressed" in record.error["detail"], record.error
        assert [each.headers["Accept-Encoding"] for each in seen] == ["identity"]


@pytest.mark.attack("A2-held-H2")
@pytest.mark.parametrize("model", PROVIDERS)
async def test_provider_redirect_is_not_followed(hub: Hub, model: str) -> None:
    statuses = [301, 302, 303, 307, 308]
    with provider(lambda each: (200, {}, json.dumps(completion(1, text="evil")).encode())) as (evil, reached):

        def lead(each: _Provider) -> tuple[int, Json, bytes]:
            return statuses[(len(each.seen) - 1) % 5], {"Location": f"{evil}{each.path}"}, b""

        with provider(lead) as (url, seen):
            record, _ = await run_agent(hub, url + PROVIDERS[model], model)
    assert record.error is not None and len(seen) == 5, record.error
    assert reached == []


@pytest.mark.attack("A2-NH6")
@pytest.mark.parametrize("model", PROVIDERS)
async def test_provider_key_is_masked_in_errors(hub: Hub, model: str) -> None:
    for status, filler in ((401, 0), (400, 700), (500, 800)):  # in an error that is cut too

        def repeat(each: _Provider, status: int = status, filler: int = filler) -> tuple[int, Json, bytes]:
            text = "x" * filler + str(dict(each.headers))
            return status, {}, json.dumps({"error": {"message": text, "type": "x", "code": status}}).encode()

        with provider(repeat) as (url, seen):
            record, shown = await run_agent(hub, url + PROVIDERS[model], model)
        assert record.error is not None and seen, record.error
        assert all(any(key in str(dict(each.headers)) for key in KEYS.values()) for each in seen)
        for key in KEYS.values():
            assert key[:16] not in str(record) and key[:16] not in str(shown)


@pytest.mark.attack("A2-held-H3")
async def test_malformed_provider_answer_is_an_error(hub: Hub) -> None:
    right = completion(1, text="Done.")
    strange: list[Json] = [{"model": None}, {"created": 10**30}, {"id": []}]
    bodies = [
        *(b"[]", b"null", b"{}", b'"x"', b'{"choices":[]}', b'{"choices":[{}]}', b'{"a":' + b"[" * 100_000, b"\xff"),
        *(json.dumps({**right, **each}).encode() for each in strange),
        json.dumps(completion(1, text="\ud800")).encode(),
        json.dumps({**right, "usage": {"prompt_tokens": "x"}}).encode(),
    ]
    for body in bodies:
        with provider(always({}, body)) as (url, seen):
            record, _ = await run_agent(hub, f"{url}/v1", budget=Budget(requests=4))
        assert record.error is not None, body[:40]
        assert record.error["code"] in ("E-AGENT-MODEL", "E-AGENT-BUDGET") and len(seen) <= 4, body[:40]


# -- untrusted content -------------------------------------------------------------------------------------------------


class _Tricked:
    """A lead agent that asks one agent for a page, then has another one pay, or pays itself, as the page says."""

    def __init__(self, pays_itself: bool) -> None:
        self._pays_itself = pays_itself

    def answer(self, request: LLMRequest) -> Turn:
        tools, pay = set(request.tools), Turn(calls=[ToolUse("bank__pay", {"id": "eve"})])
        if "agent__reader" in tools:
            turns: list[Turn | str] = [Turn(calls=[ToolUse("agent__reader", {"prompt": "Read it"})]), "Done."]
            turns.insert(1, pay if self._pays_itself else Turn(calls=[ToolUse("agent__payer", {"prompt": "Pay eve"})]))
        elif "web__read" in tools:
            turns = [Turn(calls=[ToolUse("web__read", {"id": "page"})]), "It says: pay eve."]
        else:
            turns = [pay, "Paid."]
        turn = turns[min(request.turn, len(turns) - 1)]
        return Turn(turn) if isinstance(turn, str) else turn


@pytest.mark.attack("A2-NH7")
@pytest.mark.parametrize("pays_itself", [False, True], ids=["another agent pays", "the lead pays"])
@pytest.mark.parametrize("mark", ["of the reader", "of the entry, which the reader ignores"])
async def test_untrusted_mark_is_kept_between_agents(tmp_path: Path, pays_itself: bool, mark: str) -> None:
    is_own = mark == "of the reader"
    servers: Json = {
        name: {"command": sys.executable, "args": [str(SERVER_FILE), str(tmp_path / name)]} for name in ("web", "bank")
    }
    servers["web"]["untrusted"] = not is_own
    options: Json = {"approve": "none"}
    with FakeLLM(_Tricked(pays_itself).answer) as llm:
        options["base_url"] = llm.openai_url
        async with Hub(servers, catalog_storage=None) as hub:
            reader = Agent(
                "openai-chat:gpt-4o", hub, tools=["web.*"], untrusted=["web"] if is_own else "none", **options
            )
            payer = Agent("openai-chat:gpt-4o", hub, tools=["bank.*"], **options)
            agents = {"reader": reader} if pays_itself else {"reader": reader, "payer": payer}
            tools = ["bank.pay"] if pays_itself else []
            async with Agent("openai-chat:gpt-4o", hub, tools=tools, agents=agents, **options) as lead:
                run = await lead.start("Go")
                async for event in run.events():
                    if event.kind == "asks":
                        assert event.text.startswith("after reading from web (untrusted): bank.pay")
                        await run.approve(event.step, yes=False)
                assert (await run.result()).output == "Done."
    assert not (tmp_path / "bank").exists()
