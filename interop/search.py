"""Check that clients find and call a tool of each real server by a sentence, through tool search.

    python interop/search.py --installed DIR [--servers FILE] [--without-claude]

The SDK client of both eras, and Claude Code with a fake model, use only `/mcp/search`: `search_tools` with a sentence,
then `read_tool` or `call_tool` with the name from its answer. The first sentence for each server was written without
sight of the ranking, and is counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import corpus
import httpx2
from clients import _QUIET, MODERN, _home, _run
from corpus import CorpusServer
from gateway import Gateway, run_gateway
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from model import Block, serve_script, tool_use
from one_endpoint import READY_SECONDS, entry_of
from one_endpoint import Client as PlainClient

RESULTS = 10  # of each search
PREFIX = "mcp__toolway-search__"

#: What a user would write, by server, then what a model tries after a search without success.
SENTENCES = {
    "server-everything": ("repeat back the message that I send",),
    "server-filesystem": ("which files are in this folder", "list the contents of a directory"),
    "server-memory": ("show everything in the knowledge graph",),
    "server-sequential-thinking": ("think through a problem in several steps",),
    "mcp-server-code-runner": ("execute this snippet of Python code",),
    "mcp-server-kubernetes": ("which Kubernetes contexts are configured",),
    "git-mcp-server": ("what has changed in the working tree, staged and unstaged files",),
    "mcp-server-commands": ("run a program on this machine",),
    "server-pdf": ("which PDF files can be opened",),
    "mcp-server-git": ("show the working tree status of a git repository",),
    "mcp-server-time": ("what time is it now in a timezone",),
    "mcp-server-sqlite": ("list all tables of the SQLite database",),
    "mcp-server-calculator": ("work out an arithmetic expression",),
    "mcp-text-editor": ("read text of a file by ranges of lines",),
    "office-word-mcp-server": ("make a new Word document",),
    "office-powerpoint-mcp-server": ("start a new PowerPoint slide deck", "create a new presentation"),
    "mcp-shell-server": ("execute a shell command in a directory",),
    "mcp-server-tree-sitter": ("which programming languages can be parsed",),
    "mcp-alchemy": ("names of all tables in the database",),
    "arxiv-mcp-server": ("which downloaded arXiv papers are stored here",),
    "mcp-server-motherduck": ("run a SQL query on DuckDB",),
}


@dataclass
class Tally:
    """Results of one client: servers whose tool was found and called, and problems."""

    first: int = 0  # servers whose tool was found by the first sentence
    found: int = 0
    called: int = 0
    problems: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--installed", type=Path, required=True, metavar="DIR")
    parser.add_argument("--servers", type=Path, default=corpus.DEFAULT_SERVERS, metavar="FILE")
    parser.add_argument("--without-claude", action="store_true")
    options = parser.parse_args()
    if not options.servers.exists():
        print(f"skipped: {options.servers.name} does not exist: no corpus to serve")
        return 0
    packages = corpus.read_packages(options.servers, only_callable=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        servers = corpus.load(packages, installed=options.installed, work=Path(work))
        for server in servers:
            corpus.make_work(server.work)
        with run_gateway({"mcpServers": {server.name: entry_of(server) for server in servers}}, Path(work)) as gateway:
            print(f"{_wait_for_tools(gateway, servers)} tools of {len(servers)} servers", flush=True)
            results = {
                "SDK Client, modern": asyncio.run(_check_sdk(gateway, servers, MODERN)),
                "SDK Client, legacy": asyncio.run(_check_sdk(gateway, servers, "legacy")),
            }
            if not options.without_claude:
                results["Claude Code"] = _check_claude(options.installed.resolve(), gateway, servers, Path(work))
    for name, tally in results.items():
        counts = f"found {tally.found}/{len(servers)}, {tally.first} by the first sentence"
        print(f"{name:20} {counts}; called {tally.called}/{len(servers)}")
        for problem in tally.problems:
            print(f"  {problem}")
    return 0 if all(tally.called == len(servers) for tally in results.values()) else 1


def _wait_for_tools(gateway: Gateway, servers: list[CorpusServer]) -> int:
    client, deadline = PlainClient(gateway), time.monotonic() + READY_SECONDS
    while True:
        names = client.tools()
        if all(f"{server.name}__{server.tool}" in names for server in servers) or time.monotonic() > deadline:
            return len(names)
        time.sleep(1.0)


# -- the clients -------------------------------------------------------------------------------------------------------


async def _check_sdk(gateway: Gateway, servers: list[CorpusServer], mode: str) -> Tally:
    tally = Tally()
    headers = {"Authorization": f"Bearer {gateway.token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=120.0) as http,
        Client(streamable_http_client(f"{gateway.url}/search", http_client=http), mode=mode) as client,
    ):
        for server in servers:
            name, found = f"{server.name}__{server.tool}", {}
            for number, sentence in enumerate(SENTENCES[server.name]):
                answer = await client.call_tool("search_tools", {"query": sentence, "limit": RESULTS})
                found = {each["name"]: each for each in (answer.structured_content or {})["tools"]}
                if name in found:
                    tally.first += number == 0
                    break
                tally.problems.append(f"{server.name}: {sentence!r} found {', '.join(list(found)[:3])}")
            if name not in found:
                continue
            tally.found += 1
            way = "read_tool" if found[name]["effect"] == "reads" else "call_tool"
            result = await client.call_tool(way, {"name": name, "arguments": server.arguments or {}})
            if result.is_error:
                tally.problems.append(f"{server.name}: {result.content[0]!r}"[:300])
            else:
                tally.called += 1
    return tally


def _check_claude(installed: Path, gateway: Gateway, servers: list[CorpusServer], work: Path) -> Tally:
    """Let Claude Code search for and call a tool of each server in one conversation, led by a fake model."""
    program = installed / "clients" / "claude-code" / "node_modules" / "@anthropic-ai" / "claude-code"
    claude = [str(installed / "bin" / "node-new"), str(program / "cli-wrapper.cjs")]
    environ = {"HOME": _home(work, "claude-search"), **_QUIET}
    shown = shlex.split(gateway.toolway("connect", "claude-code", "--print", "--search", "--quiet"))
    _run([*claude, *shown[1:]], environ)
    offered: set[str] = set()
    tallies: list[Tally] = []

    def next_block(results: list[str], names: set[str]) -> Block:
        """Repeat the conversation from its results; return what the model does next."""
        offered.update(name for name in names if name.startswith(PREFIX))
        if not names:  # a request without tools, such as that for a title
            return {"type": "text", "text": "no tools"}
        block, tally = _continue(servers, iter(results), len(results))
        tallies.append(tally)
        return block

    with serve_script(next_block) as model:
        environ |= {"ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "none", "ENABLE_TOOL_SEARCH": "false"}
        output = _run([*claude, "-p", "use the tools", "--allowedTools", ",".join(_meta_tools())], environ).strip()
    if output != "done" or offered != set(_meta_tools()):
        return Tally(problems=[f"offered {sorted(offered)}, answered {output[-300:]}"])
    return tallies[-1]


def _continue(servers: list[CorpusServer], results: Iterator[str], count: int) -> tuple[Block, Tally]:
    """Return the next block of the conversation, and how it went so far."""
    tally = Tally()
    for server in servers:
        name, found = f"{server.name}__{server.tool}", False
        for number, sentence in enumerate(SENTENCES[server.name]):
            result = next(results, None)
            if result is None:
                return tool_use(f"{PREFIX}search_tools", {"query": sentence, "limit": RESULTS}, count), tally
            found = name in result
            if found:
                tally.first += number == 0
                tally.found += 1
                break
            tally.problems.append(f"{server.name}: not found by {sentence!r}")
        if not found:
            continue
        result = next(results, None)
        if result is None:
            return tool_use(f"{PREFIX}call_tool", {"name": name, "arguments": server.arguments or {}}, count), tally
        if any(sign in result for sign in ("Unknown tool", "Not sent.", "MCP error", "<tool_use_error>")):
            tally.problems.append(f"{server.name}: {result[:200]}")
        else:
            tally.called += 1
    return {"type": "text", "text": "done"}, tally


def _meta_tools() -> list[str]:
    return [f"{PREFIX}{name}" for name in ("search_tools", "describe_tool", "read_tool", "call_tool")]


if __name__ == "__main__":
    sys.exit(main())
