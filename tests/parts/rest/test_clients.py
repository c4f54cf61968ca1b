"""Clients made of the document: our own OpenAPI reader, a generated one, and the command that writes the document."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.edge_lab import TOKEN, edge
from tests.gateway.program import program
from tests.parts.rest.lab import get_document, post, request
from toolway import Hub, ToolError
from toolway.testing import FakeHttp, fake_server

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
#: Calls with results that do not change from one to the next.
CALLS: list[tuple[str, Json]] = [
    *((f"{server}__echo", {"text": f"text {number}"}) for server in "ab" for number in range(5)),
    *((f"{server}__add", {"a": number, "b": 0.5}) for server in "ab" for number in range(5)),
]


async def test_own_reader_makes_the_same_tools_and_results(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        base = f"http://127.0.0.1:{found.port}"
        document = tmp_path / "openapi.json"
        document.write_text(json.dumps(await get_document(base)))
        entry = {
            "openapi": str(document),
            "url": f"{base}/api",
            "headers": {"Authorization": f"Bearer {TOKEN}"},
        }
        async with Hub({"api": entry}, catalog_storage=None) as hub:
            await hub.wait_ready("api", timeout=30)
            made = {tool.name: tool for tool in await hub.list_tools() if tool.server == "api"}
            assert sorted(made) == sorted(await found.tools())
            for name, arguments in CALLS:
                plain = await found.call(name, arguments)
                body = made[name].input_schema["properties"]
                assert body.keys() == {"body"}, "the arguments are the body"
                result = await hub.call_tool(f"api.{name}", {"body": arguments})
                expected = plain["result"].get("structuredContent") or {"text": arguments["text"]}
                assert result.structured_content in (expected, {"result": expected})
            with pytest.raises(ToolError, match="no luck"):
                await hub.call_tool("api.a__fail", {"body": {"text": "no luck"}})


async def test_documents_differ_by_caller_and_are_not_stored(tmp_path: Path) -> None:
    async with edge(tmp_path) as found:
        base, token = f"http://127.0.0.1:{found.port}", found.key("both", "server/a")
        everything = await get_document(base)
        limited = await get_document(base, token=found.key("server/a"))
        assert sorted(limited["paths"]) == [each for each in sorted(everything["paths"]) if "/a__" in each]
        own = await get_document(base, "server/a", token)
        assert "/tools/echo" in own["paths"] and len(own["paths"]) * 2 == len(everything["paths"])
        both = await get_document(base, "both", token)
        assert both["servers"] == [{"url": "/api/both"}] and both["paths"].keys() == everything["paths"].keys()
        answer = await request(base, "GET", "/api/openapi.json")
        assert answer.headers["cache-control"] == "private, no-store"
        ids = [each["post"]["operationId"] for each in everything["paths"].values()]
        assert len(set(ids)) == len(ids) and max(map(len, ids)) <= 64
        assert not await _listed_changes_are_missed(found, base)


async def _listed_changes_are_missed(found: Any, base: str) -> bool:
    """Add a tool to a server; return True if the document, which was asked for before, does not have it."""
    await post(base, "a__change_tools")
    before = set((await get_document(base))["paths"])
    async with asyncio.timeout(30):
        while set(await found.tools()) == {each.removeprefix("/tools/") for each in before}:
            await asyncio.sleep(0.02)
            return set((await get_document(base))["paths"]) < {f"/tools/{each}" for each in await found.tools()}
    return False


async def test_command_writes_the_document(tmp_path: Path) -> None:
    async with program(tmp_path / "g", {"s": fake_server()}, toolsets={"few": {"tools": ["s.echo"]}}) as run:

        async def toolway(*words: str) -> tuple[int, str, str]:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "toolway.cli", "tools", "openapi", *words),
                env={**os.environ, "TOOLWAY_STATE": str(run.folder / "state")},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, error = await process.communicate()
            return process.returncode or 0, out.decode(), error.decode()

        code, out, _ = await toolway()
        document = json.loads(out)
        assert code == 0 and document["servers"] == [{"url": f"http://127.0.0.1:{run.port}/api"}]
        assert "/tools/s__echo" in document["paths"]
        code, out, _ = await toolway("--toolset", "few")
        few = json.loads(out)
        assert code == 0 and [*few["paths"]] == ["/tools/s__echo"] and few["servers"][0]["url"].endswith("/api/few")
        code, _, error = await toolway("--toolset", "none")
        assert code != 0 and "unknown endpoint" in error
        code, _, error = await toolway("--toolset", "../admin")
        assert code != 0 and "invalid toolset" in error


def _generator(folder: Path) -> str:
    """The Python of an environment with openapi-python-client, which is installed if it can be."""
    if importlib.util.find_spec("openapi_python_client") is not None:
        return sys.executable
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    try:
        words = [python, "-m", "pip", "install", "--quiet", "openapi-python-client"]
        subprocess.run(words, check=True, capture_output=True, timeout=180)
    except (subprocess.SubprocessError, OSError):
        pytest.skip("openapi-python-client cannot be installed here")
    return python


SCRIPT = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
client = importlib.import_module("toolway_client").AuthenticatedClient(base_url=sys.argv[2], token=sys.argv[3])
for name, arguments in json.loads(sys.argv[4]):
    module = importlib.import_module("toolway_client.api.default." + name.replace("__", "_"))
    models = importlib.import_module("toolway_client.models")
    model = getattr(models, "".join(part.title() for part in name.split("__")) + "Arguments")
    answer = module.sync_detailed(client=client, body=model.from_dict(arguments))
    print(json.dumps([answer.status_code, answer.parsed.to_dict()]))
"""


async def test_generated_client_calls_20_tools(tmp_path: Path) -> None:
    python = await asyncio.to_thread(_generator, tmp_path / "venv")
    async with edge(tmp_path, servers={name: FakeHttp(name=name) for name in ("a", "b")}) as found:
        base = f"http://127.0.0.1:{found.port}"
        (tmp_path / "openapi.json").write_text(json.dumps(await get_document(base)))
        words = [
            *(python, "-m", "openapi_python_client", "generate", "--path", "openapi.json"),
            *("--meta", "none", "--output-path", "toolway_client"),
        ]
        made = await asyncio.to_thread(subprocess.run, words, cwd=tmp_path, capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
        script = [python, "-c", textwrap.dedent(SCRIPT), str(tmp_path), f"{base}/api", TOKEN, json.dumps(CALLS)]
        ran = await asyncio.to_thread(subprocess.run, script, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        answers = [json.loads(line) for line in ran.stdout.splitlines()]
        assert len(answers) == len(CALLS) == 20
        for (name, arguments), (status, body) in zip(CALLS, answers, strict=True):
            plain = (await found.call(name, arguments))["result"]
            assert (status, body) == (200, plain.get("structuredContent") or {"text": arguments["text"]})
