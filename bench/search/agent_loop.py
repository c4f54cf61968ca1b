"""Run an agent over questions, through /mcp/search and with all definitions: python -m bench.search.agent_loop [SET].

What is real: the gateway, its HTTP endpoints, the search, the check of arguments, the client (`Hub`). The servers list
the tools of the set; a server says whether its tool is one of those that the question needs.

What is not: the model. It is a script, the same for all runs. It reads what a model would be given (definitions, or the
lines of a search), prefers the tool whose text shares the rarest words with the question, fills the arguments by their
types, and tries at most three tools, the next one after an error. With `--judge minilm` it compares by MiniLM instead.
A language model chooses better in all runs; what is compared is what it is given and what that costs.

Tokens are characters ÷ 4.4: all that the model is given or writes. "window" is the sum of one conversation, "read"
counts everything again in each turn, as a provider without a cache does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from toolway import Hub, ToolResult
from toolway.config.server_entry import parse_entry
from toolway.config.settings import SearchSettings
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.search.tokens import CHARS_PER_TOKEN
from toolway.search.words import split_name, split_stems
from toolway.testing import FakeHttp

Json = dict[str, Any]
DATA: Final = Path(__file__).parent / "data"
MADE_MODEL: Final = Path(__file__).parents[2] / "packages" / "toolway-search-minilm" / "src"  # by `make search-model`
TOKEN: Final = "tw_agent-loop"
QUESTIONS: Final = 60
TRIES: Final = 3
HOST_LIMIT: Final = 128  # tools that a host with a limit passes on to its model
MAX_WORDS: Final = 400
MAX_QUERY_CHARS: Final = 1_000  # that search_tools accepts


@dataclass(frozen=True)
class Question:
    """A question and the tools that solve it, as (server, tool)."""

    text: str
    right: frozenset[tuple[str, str]]


@dataclass
class Servers:
    """The servers of a set: what they list, and which call they got last."""

    definitions: Mapping[str, list[Json]]  # by server
    right: frozenset[tuple[str, str]] = frozenset()  # of the present question
    calls: list[tuple[str, str]] = field(default_factory=list)


class ListedTools:
    """Toolbox of a fake server: lists given definitions, and says whether a call was the right one."""

    def __init__(self, server: str, servers: Servers) -> None:
        self._server = server
        self._servers = servers

    def definitions(self, server: object) -> list[Json]:
        return self._servers.definitions[self._server]

    def run(self, server: object, call: Any) -> Json:
        tool = (self._server, call.params["name"])
        self._servers.calls.append(tool)
        if tool in self._servers.right:
            return {"content": [{"type": "text", "text": "done"}]}
        return {"content": [{"type": "text", "text": "this does not do what was asked for"}], "isError": True}


@dataclass
class Candidate:
    """A tool that the model may choose: the name to call, the text that it was given, and the schema if it knows it."""

    name: str
    text: str
    schema: Json


@dataclass
class Run:
    """What happened with one question."""

    solved_first: bool = False
    solved: bool = False
    rounds: int = 0  # requests to the model: each sees everything so far
    calls: int = 0  # of tools, searches included
    window: int = 0  # characters
    read: int = 0  # characters, counted again in each round

    def give(self, *texts: str) -> None:
        self.window += sum(map(len, texts))

    def think(self) -> None:
        self.rounds += 1
        self.read += self.window


class WordJudge:
    """The script that takes the part of a model: compares words."""

    async def rank(self, question: str, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Order tools by the rare words that they share with a question. Equal ones stay in the order given."""
        texts = [set(split_stems(split_name(each.text), MAX_WORDS)) for each in candidates]
        seen = Counter(word for text in texts for word in text)
        words = set(split_stems(question, MAX_WORDS))
        rarity = {word: math.log(1 + len(texts) / seen[word]) for word in words if word in seen}
        value = {id(each): self._value(each, rarity, text) for each, text in zip(candidates, texts, strict=True)}
        return sorted(candidates, key=lambda each: -value[id(each)])

    def _value(self, candidate: Candidate, rarity: Mapping[str, float], text: set[str]) -> float:
        named = set(split_stems(split_name(candidate.name), 40))
        found = sum(rarity.get(word, 0.0) * (2 if word in named else 1) for word in text)
        return found / math.sqrt(4 + len(text))


class MeaningJudge:
    """A small local model in the part of the model: compares vectors of MiniLM."""

    def __init__(self) -> None:
        from toolway.search.minilm import MiniLm

        self._model = MiniLm()
        self._known: dict[str, Any] = {}

    async def rank(self, question: str, candidates: Sequence[Candidate]) -> list[Candidate]:
        texts = [question, *(split_name(each.text)[:2_000] for each in candidates)]
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= dict(zip(new, await self._model.embed(new, 600), strict=True))
        value = {
            id(each): float(self._known[text] @ self._known[question])
            for each, text in zip(candidates, texts[1:], strict=True)
        }
        return sorted(candidates, key=lambda each: -value[id(each)])


Judge = WordJudge | MeaningJudge


def fill(schema: Json, question: str) -> Json:
    """Fill the required arguments of a schema by their types, with what the question has."""
    properties = schema.get("properties")
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    known = properties if isinstance(properties, dict) else {}
    return {name: _value(known.get(name, {}), question, schema) for name in names}


def _value(schema: Any, question: str, root: Json, depth: int = 0) -> Any:
    if not isinstance(schema, dict) or depth > 6:
        return question
    if "$ref" in schema:
        target: Any = root
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            target = target.get(part, {}) if isinstance(target, dict) else {}
        return _value(target, question, root, depth + 1)
    if schema.get("enum"):
        return next((each for each in schema["enum"] if str(each).lower() in question.lower()), schema["enum"][0])
    if "const" in schema or "default" in schema:
        return schema.get("const", schema.get("default"))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if schema.get(keyword):
            return _value(schema[keyword][0], question, root, depth + 1)
    kind = schema.get("type")
    kind = next((each for each in kind if each != "null"), None) if isinstance(kind, list) else kind
    quoted = re.findall(r"['\"“]([^'\"”]+)['\"”]", question)
    if kind in ("integer", "number"):
        number = next((int(each) for each in re.findall(r"\b\d{1,6}\b", question)), 1)
        return max(schema.get("minimum", number), min(schema.get("maximum", number), number))
    if kind == "boolean":
        return True
    if kind == "array":
        return [_value(schema.get("items", {}), question, root, depth + 1) for _ in range(schema.get("minItems", 1))]
    if kind == "object" or "properties" in schema:
        return fill({**schema, "$defs": root.get("$defs", {})}, question)
    if schema.get("format") == "uri" or str(schema.get("pattern", "")).startswith("^http"):
        return "https://example.com/"
    text = (quoted or [question])[0]
    return text[: schema.get("maxLength", 200)].ljust(schema.get("minLength", 0), "x")


def schema_of_line(arguments: Mapping[str, str]) -> Json:
    """Return the schema that a line of a search tells: names, which are required, and simple types."""
    properties: Json = {}
    for name, kind in arguments.items():
        plain = kind.removesuffix("[]")
        choices = [json.loads(each) for each in plain.split("|") if each.startswith('"')]
        one: Json = {"enum": choices} if choices else {"type": plain} if plain != "any" else {}
        properties[name.removesuffix("?")] = {"type": "array", "items": one} if kind.endswith("[]") else one
    return {"properties": properties, "required": [name for name in arguments if not name.endswith("?")]}


# -- the ways to work -------------------------------------------------------------------------------------------------


async def with_definitions(
    hub: Hub, judge: Judge, question: Question, servers: Servers, definitions: Sequence[Json]
) -> Run:
    """Solve a question with definitions that are all in the window."""
    run = Run()
    run.give(*(_sent(each) for each in definitions), question.text)
    candidates = [
        Candidate(each["name"], f"{each['name']} {each.get('description', '')}", each["inputSchema"])
        for each in definitions
    ]
    for candidate in (await judge.rank(question.text, candidates))[:TRIES]:
        if await _try(hub, f"all.{candidate.name}", candidate, question, servers, run):
            break
    run.think()  # the answer
    return run


async def through_search(
    hub: Hub, judge: Judge, question: Question, servers: Servers, definitions: Sequence[Json]
) -> Run:
    """Solve a question by searching, with the four meta-tools in the window."""
    run = Run()
    run.give(*(_sent(each) for each in definitions), question.text)
    run.think()
    query = {"query": question.text[:MAX_QUERY_CHARS]}
    answer = await hub.call_tool("search.search_tools", query)
    run.calls += 1
    run.give(json.dumps(query), answer.text)
    candidates = [
        Candidate(each["name"], f"{each['name']} {each['description']}", schema_of_line(each["arguments"]))
        for each in answer.structured_content["tools"]
    ]
    # The order of the answer is advice as well: the first line moves up if the script hardly sees a difference.
    ranked = await judge.rank(question.text, candidates)
    places = {id(each): place for place, each in enumerate(candidates)}
    order = sorted(ranked, key=lambda each: ranked.index(each) + places[id(each)])
    for candidate in order[:TRIES]:
        if await _try(hub, "search.call_tool", candidate, question, servers, run, through=True):
            break
    run.think()  # the answer
    return run


async def _try(
    hub: Hub, name: str, candidate: Candidate, question: Question, servers: Servers, run: Run, *, through: bool = False
) -> bool:
    """Call a tool, once more with the full schema if the arguments did not fit. Return True if it was the right one."""
    schema = candidate.schema
    first = not servers.calls
    for _ in range(2):
        arguments = fill(schema, question.text)
        run.think()
        given = {"name": candidate.name, "arguments": arguments} if through else arguments
        try:
            result: ToolResult | None = await hub.call_tool(name, given, max_attempts=1)
            text = result.text if result is not None else ""
        except Exception as exc:  # a refused call is part of the measurement
            result, text = None, str(exc)
        run.calls += 1
        run.give(json.dumps(given), text)
        if servers.calls:
            break
        known = result.structured_content if result is not None else None
        if not isinstance(known, dict) or "inputSchema" not in known:
            break
        schema = known["inputSchema"]
    solved = bool(servers.calls) and servers.calls[-1] in question.right
    run.solved = run.solved or solved
    run.solved_first = run.solved_first or (solved and first)
    return solved


def _sent(definition: Json) -> str:
    return json.dumps({key: definition[key] for key in ("name", "description", "inputSchema") if definition.get(key)})


# -- the set and the gateway ------------------------------------------------------------------------------------------


def load_set(name: str, count: int) -> tuple[Mapping[str, list[Json]], list[Question]]:
    """Return the definitions of a set by server, and `count` of its questions, chosen with a fixed seed."""
    content = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    definitions: dict[str, list[Json]] = {}
    place: dict[str, tuple[str, str]] = {}
    for tool in content["tools"]:
        server = _server_name(tool.get("server") or "tools")
        schema = tool.get("inputSchema") or {
            "type": "object",
            "properties": {param: {"type": "string", "description": text} for param, text in tool.get("params", ())},
            "required": [param for param, _ in tool.get("params", ())][:1],
        }
        listed = {"name": tool["name"], "description": tool.get("description", ""), "inputSchema": schema}
        definitions.setdefault(server, []).append(listed)
        place[tool["id"]] = (server, tool["name"])
    questions = [
        Question(each["text"], frozenset(place[id_] for group in each["relevant"] for id_ in group if id_ in place))
        for each in content["queries"]
        if each["relevant"]
    ]
    random.Random(18).shuffle(questions)
    return definitions, questions[:count]


def _server_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "server"


@asynccontextmanager
async def gateway_before(servers: Servers, settings: SearchSettings, folder: Path) -> AsyncIterator[str]:
    """Run a gateway in front of all servers. Yields its URL."""
    async with AsyncExitStack() as stack:
        entries = {}
        for name in servers.definitions:
            fake = FakeHttp(name=name)
            fake.server.toolbox = ListedTools(name, servers)
            await stack.enter_async_context(fake)
            entries[name] = parse_entry({"url": fake.url})
        hub = await stack.enter_async_context(HubCore(entries, callbacks=NoHubCallbacks(), catalog_storage=None))
        hub.apply_search_settings(settings)
        gateway = Gateway(hub, b"k" * 32, FileApiKeyStore(folder / "keys.json", TOKEN), groups=dict)
        port = await gateway.listen("127.0.0.1", 0)
        await hub.wait_ready(timeout=120)
        await hub.wait_lists_known(list(entries), "tools", 120)
        await _wait_embedded(hub)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            now = asyncio.Event()
            now.set()
            await gateway.drain(now, 0, 0)


async def _wait_embedded(hub: HubCore) -> None:
    if hub.search_model:
        from toolway.search.vectors import ModelVectors

        await hub.tool_search.search_async("begin")
        source = hub.search_vectors
        if not isinstance(source, ModelVectors):
            raise SystemExit(f"no search by meaning: {source.problem if source is not None else 'no model'}")
        async with asyncio.timeout(600):
            await source.wait_complete()


async def measure(name: str, count: int, judge: Judge, *, model: str) -> dict[str, list[Run]]:
    """Run all ways over the questions of a set."""
    definitions, questions = load_set(name, count)
    servers = Servers(definitions)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.environ["XDG_STATE_HOME"] = folder
        settings = SearchSettings(model=model, learn=False)
        async with gateway_before(servers, settings, Path(folder)) as url:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            entries = {
                "all": {"url": f"{url}/mcp", "headers": headers},
                "search": {"url": f"{url}/mcp/search", "headers": headers},
            }
            async with Hub(entries, catalog_storage=None) as hub:
                listed = [tool.raw for tool in await hub.list_tools(server="all", timeout=60)]
                few = [tool.raw for tool in await hub.list_tools(server="search", timeout=60)]
                ways = {
                    "all definitions": (with_definitions, listed),
                    f"first {HOST_LIMIT} definitions": (with_definitions, listed[:HOST_LIMIT]),
                    "search": (through_search, few),
                }
                runs: dict[str, list[Run]] = {way: [] for way in ways}
                for question in questions:
                    for way, (work, given) in ways.items():
                        servers.right, servers.calls = question.right, []
                        runs[way].append(await work(hub, judge, question, servers, given))
    return runs


def report(runs: Mapping[str, Sequence[Run]]) -> str:
    lines = ["| given | solved at once | solved | calls | window | read |", "|---|---|---|---|---|---|"]
    for way, each in runs.items():
        first, solved = sum(run.solved_first for run in each), sum(run.solved for run in each)
        calls = statistics.mean(run.calls for run in each)
        window, read = (
            statistics.mean(getattr(run, kind) for run in each) / CHARS_PER_TOKEN for kind in ("window", "read")
        )
        lines.append(
            f"| {way} | {first} of {len(each)} | {solved} of {len(each)} | {calls:.1f} | {window:,.0f} | {read:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", nargs="?", default="livemcpbench", help="a set of bench/search/data")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--judge", choices=("words", "minilm"), default="words", help="the part of the model")
    parser.add_argument("--model", choices=("", "minilm"), default="", help="search by meaning as well")
    options = parser.parse_args()
    sys.path.append(str(MADE_MODEL))  # an installed wheel comes first
    judge: Judge = WordJudge() if options.judge == "words" else MeaningJudge()
    runs = asyncio.run(measure(options.set, options.questions, judge, model=options.model))
    print(f"{options.set}, judge {options.judge}, search by {options.model or 'words'}\n{report(runs)}")


if __name__ == "__main__":
    main()
