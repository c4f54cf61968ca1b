"""Run an agent over questions, with all definitions and through /mcp/search: python -m bench.search.agent_loop [SET].

What is real: the gateway, its HTTP endpoints, the search, the check of arguments, the client (`Hub`). The servers list
the tools of the set with the schemas of the real servers; a server says whether the question needs its tool.

What is not: the model. Its part is taken by a script, the same for all rows: it reads what a model would be given
(definitions, or the lines of a search), orders the tools, fills the arguments by their types, and tries at most three
tools, the next one after an error. It orders by the rare words that a tool shares with the question, or with MiniLM by
meaning. A language model chooses better in all rows; what is compared is what it is given and what that costs.

Tokens are characters ÷ 4.4: all that the model is given or writes. "window" is the sum of one conversation, "read"
counts everything again in each turn, as a provider without a cache does. Descriptions of the set *own* are cut, so
a definition counts with the characters that it has on the real server.

MiniLM needs `make search-score ARGS=model`; without it, its rows are skipped.
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
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore
from toolway.parts.search.runtime import SearchRuntime
from toolway.parts.search.settings import SearchSettings
from toolway.search.tokens import CHARS_PER_TOKEN
from toolway.search.words import split_name, split_stems
from toolway.testing import FakeHttp

Json = dict[str, Any]
DATA: Final = Path(__file__).parent / "data"
MADE_MODEL: Final = (
    Path(__file__).parents[2] / "packages" / "toolway-search-minilm" / "src"
)  # by `make search-score ARGS=model`
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
    sizes: Mapping[str, int] = field(default_factory=dict)  # characters of a whole definition, by name at /mcp
    right: frozenset[tuple[str, str]] = frozenset()  # of the present question
    calls: list[tuple[str, str]] = field(default_factory=list)

    def size(self, definition: Json) -> int:
        """Return the characters of a definition, as its real server sends it if that is known."""
        return self.sizes.get(definition["name"]) or len(_sent(definition))


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

    def give(self, *sizes: int) -> None:
        """Count characters that the model is given or writes."""
        self.window += sum(sizes)

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
        from toolway.parts.search.minilm import MiniLm

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
    run.give(*map(servers.size, definitions), len(question.text))
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
    run.give(*map(servers.size, definitions), len(question.text))
    run.think()
    query = {"query": question.text[:MAX_QUERY_CHARS]}
    answer = await hub.call_tool("search.search_tools", query)
    run.calls += 1
    run.give(len(json.dumps(query)), len(answer.text))
    candidates = [
        Candidate(each["name"], f"{each['name']} {each['description']}", schema_of_line(each["arguments"]))
        for each in answer.data["tools"]
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
            result: ToolResult | None = await hub.call_tool(name, given, max_attempts=1, raise_on_error=False)
            text = result.text if result is not None else ""
        except Exception as exc:  # a refused call is part of the measurement
            result, text = None, str(exc)
        run.calls += 1
        run.give(len(json.dumps(given)), len(text))
        if servers.calls:
            break
        known = result.structured_content if result is not None else None
        if not isinstance(known, dict) or "inputSchema" not in known:
            break
        schema = known["inputSchema"]
        run.give(max(0, servers.sizes.get(candidate.name, 0) - len(json.dumps(schema))))  # what was shortened
    solved = bool(servers.calls) and servers.calls[-1] in question.right
    run.solved = run.solved or solved
    run.solved_first = run.solved_first or (solved and first)
    return solved


def _sent(definition: Json) -> str:
    return json.dumps({key: definition[key] for key in ("name", "description", "inputSchema") if definition.get(key)})


# -- the set and the gateway ------------------------------------------------------------------------------------------


def load_set(name: str, count: int) -> tuple[Servers, list[Question]]:
    """Return the servers of a set, and `count` of its questions, chosen with a fixed seed."""
    content = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    definitions: dict[str, list[Json]] = {}
    place: dict[str, tuple[str, str]] = {}
    for tool in content["tools"]:
        server = _server_name(tool.get("server") or "tools")
        schema = _schema(tool)
        listed = {"name": tool["name"], "description": tool.get("description", ""), "inputSchema": schema}
        definitions.setdefault(server, []).append(listed)
        place[tool["id"]] = (server, tool["name"])
    questions = [
        Question(each["text"], frozenset(place[id_] for group in each["relevant"] for id_ in group if id_ in place))
        for each in content["queries"]
        if each["relevant"]
    ]
    random.Random(18).shuffle(questions)
    sizes = {"__".join(place[tool["id"]]): tool["chars"] for tool in content["tools"] if "chars" in tool}
    return Servers(definitions, sizes), questions[:count]


def _schema(tool: Json) -> Json:
    """Return the input schema of a tool of a set: with the types of the real server, or with descriptions alone."""
    texts = {param: {"description": text} for param, text in tool.get("params", ())}
    if "schema" not in tool:
        properties: Json = {param: {"type": "string", **text} for param, text in texts.items()}
        return {"type": "object", "properties": properties, "required": list(texts)[:1]}
    known: Json = tool["schema"]
    properties = {param: {**each, **texts.get(param, {})} for param, each in known.get("properties", {}).items()}
    return {**known, "properties": properties}


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
        gateway = Gateway(hub, b"k" * 32, FileApiKeyStore(folder / "keys.json", TOKEN))
        search = gateway.parts.runtime("search", SearchRuntime)
        search.apply(settings)
        port = await gateway.listen("127.0.0.1", 0)
        await hub.servers.wait_ready(timeout=120)
        await hub.lists.waits.wait_known(list(entries), "tools", 120)
        await _wait_embedded(hub, search)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            now = asyncio.Event()
            now.set()
            await gateway.drain(now, 0, 0)


async def _wait_embedded(hub: HubCore, search: SearchRuntime) -> None:
    if search.settings.model:
        from toolway.parts.search.vectors import ModelVectors

        await hub.tool_search.search_async("begin")
        source = search.vectors
        if not isinstance(source, ModelVectors):
            raise SystemExit(f"no search by meaning: {source.problem if source is not None else 'no model'}")
        async with asyncio.timeout(600):
            await source.wait_complete()


async def measure(
    name: str, count: int, judge: Judge, *, model: str, only_search: bool = False
) -> dict[str, list[Run]]:
    """Run all ways over the questions of a set."""
    servers, questions = load_set(name, count)
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
                listed = [tool.raw for tool in await hub.list_tools(server="all", wait=60)]
                few = [tool.raw for tool in await hub.list_tools(server="search", wait=60)]
                ways = {
                    f"all {len(listed)} definitions": (with_definitions, listed),
                    f"the first {HOST_LIMIT} definitions": (with_definitions, listed[:HOST_LIMIT]),
                    f"search by words{' and MiniLM' if model else ''}": (through_search, few),
                }
                runs: dict[str, list[Run]] = {way: [] for way in (list(ways)[2:] if only_search else ways)}
                for question in questions:
                    for way in runs:
                        work, given = ways[way]
                        servers.right, servers.calls = question.right, []
                        runs[way].append(await work(hub, judge, question, servers, given))
    return runs


def report(judge: str, runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return a row for each way to work."""
    lines = []
    for way, each in runs.items():
        first, solved = sum(run.solved_first for run in each), sum(run.solved for run in each)
        calls, rounds = (statistics.mean(getattr(run, kind) for run in each) for kind in ("calls", "rounds"))
        window, read = (
            statistics.mean(getattr(run, kind) for run in each) / CHARS_PER_TOKEN for kind in ("window", "read")
        )
        cells = (judge, way, f"{first} of {len(each)}", f"{solved} of {len(each)}", f"{calls:.1f}", f"{rounds:.1f}")
        lines.append(f"| {' | '.join(cells)} | {window:,.0f} | {read:,.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("set", nargs="?", default="own", help="a set of bench/search/data")
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    options = parser.parse_args()
    sys.path.append(str(MADE_MODEL))  # an installed wheel comes first
    print("| model | given | solved at once | solved | calls | turns | window | read |", "|---" * 8 + "|", sep="\n")
    judges: dict[str, Judge] = {"words": WordJudge()}
    if (MADE_MODEL / "toolway_search_minilm" / "model.onnx").exists():
        judges["MiniLM"] = MeaningJudge()
    for name, judge in judges.items():
        for model in ("", "minilm")[: len(judges)]:
            runs = asyncio.run(measure(options.set, options.questions, judge, model=model, only_search=bool(model)))
            print(*report(name, runs), sep="\n", flush=True)
    if len(judges) == 1:
        print("\nMiniLM: skipped, make search-score ARGS=model")


if __name__ == "__main__":
    main()
