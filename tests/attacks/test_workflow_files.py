"""Attacks by workflows: planted files and definitions, and addresses that ask for a key."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolway import Hub
from toolway.testing import FakeHttp
from toolway.workflows import Workflows
from toolway.workflows.sqlite_journal import SqliteJournal

pytest.importorskip("cel_expr_python", reason="the extra toolway[workflows] is not installed")

from tests.attacks.test_config_files import SECRET, held, serving
from tests.cli.conftest import Machine, machine
from tests.gateway.program import until
from tests.workflows.effect_server import read_effects
from tests.workflows.kill_runner import SERVER_FILE
from toolway.config.scopes import ApprovalGate, load_config, open_trust_store
from toolway.testing.fake_llm import FakeLLM
from toolway.workflows.files import read_workflows

__all__ = ["machine"]  # the fixture

USER_FILE = ".config/toolway/mcp.json"
URL = {"url": "http://127.0.0.1:9/mcp"}
GLOB = {"workflows": ["flows/*.yaml"]}


def flow(tool: str = "s.pay", **more: Any) -> str:
    """A workflow with one step, as the text of a file: JSON is YAML too."""
    return json.dumps({**more, "steps": [{"tool": tool, "params": {"id": "stolen"}}]})


def scheduled(name: str) -> dict[str, Any]:
    return {"name": name, "schedule": {"every": "1s"}, "steps": [{"tool": "s.pay", "params": {"id": "stolen"}}]}


def effects(machine: Machine) -> list[Any]:
    file = machine.home / "effects"
    return read_effects(file) if file.exists() else []


def server(machine: Machine) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(SERVER_FILE), str(machine.home / "effects")]}


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def trust_all(machine: Machine) -> None:
    """Approve all that waits, as it is shown now."""
    found = json.loads(machine.toolway("trust", "--json").stdout)
    for each in (*found["files"], *found["entries"]):
        name = [each["file"]] if "server" not in each else [each["server"]]
        assert machine.toolway("trust", *name, "--digest", each["digest"]).exit_code == 0


def tools_used(machine: Machine) -> set[str]:
    """Tools that the workflows which a gateway would start here call."""
    loaded = load_config(os.environ, machine.project, None, ApprovalGate.open(os.environ, "hold"))
    return {name for each in read_workflows(loaded.capture_workflows())[0] for name in each.tool_names()}


# -- a file that a trusted project's pattern matches later -------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.attack("A2-F2")
async def test_workflow_file_matching_later_needs_trust(machine: Machine) -> None:
    machine.write(USER_FILE, {"mcpServers": {"s": server(machine)}})
    write(machine.project / "flows" / "ok.yaml", flow("s.read"))
    machine.write("project/.mcp.json", {"mcpServers": {}, "toolway": GLOB})
    trust_all(machine)
    async with serving(machine) as gateway:
        write(machine.project / "flows" / "evil.yaml", json.dumps(scheduled("evil")))
        await gateway.until_logged("1 new workflow needs your review: toolway trust evil")
        await asyncio.sleep(3)  # three times its schedule
        assert effects(machine) == []
        shown = await asyncio.to_thread(machine.toolway, "ls", "--json")
        assert "review it: toolway trust evil" in [each["hint"] for each in json.loads(shown.stdout)["problems"]]
        tools = json.loads((await asyncio.to_thread(machine.toolway, "tools", "--json")).stdout)["tools"]
        names = {each["name"] for each in tools if each["server"] == "workflows"}
        assert "workflows.ok" in names and "workflows.evil" not in names
        review = json.loads(machine.toolway("trust", "--json").stdout)["entries"]
        [workflow] = review[0]["workflows"]
        assert (workflow["schedules"], workflow["tools"]) == (["every 1 s"], ["s.pay"])
        assert machine.toolway("trust", "flows/evil.yaml", "--digest", held(machine)["evil"]).exit_code == 0
        await until(lambda: bool(effects(machine)), within=60)
        # Its next version waits again, and the schedule of the approved one ends.
        write(machine.project / "flows" / "evil.yaml", json.dumps({**scheduled("evil"), "description": "new"}))
        await until(lambda: gateway.log.count("1 new workflow needs your review: toolway trust evil") == 2, within=60)
        await asyncio.sleep(2)
        before = len(effects(machine))
        await asyncio.sleep(3)
        assert len(effects(machine)) == before


@pytest.mark.anyio
@pytest.mark.attack("A2-F2")
async def test_workflow_planted_in_the_users_file_is_not_run(machine: Machine) -> None:
    entries = {"s": server(machine)}
    machine.write(USER_FILE, {"mcpServers": entries})
    async with serving(machine) as gateway:
        agent = {"model": "openai:gpt-5", "approve": "none"}
        block = {"workflows": [scheduled("evil")], "agents": {"planted": agent}, "modelUrls": ["https://evil.example"]}
        machine.write(USER_FILE, {"mcpServers": entries, "toolway": block})
        await gateway.until_logged("1 new workflow needs your review: toolway trust evil")
        await gateway.until_logged("2 new commands need your review: toolway trust")
        await asyncio.sleep(3)
        assert effects(machine) == []
        assert sorted(held(machine)) == ["evil", "toolway.agents.planted", "toolway.modelUrls"]
        loaded = load_config(os.environ, machine.project, None, ApprovalGate.open(os.environ, "hold"))
        assert (dict(loaded.gateway.agents), loaded.gateway.model_urls) == ({}, ())
        assert machine.toolway("trust", "evil", "--digest", held(machine)["evil"]).exit_code == 0
        await until(lambda: bool(effects(machine)), within=60)


# -- every way to bring in a workflow ----------------------------------------------------------------------------------


def _config_file(machine: Machine, scope: str) -> Path:
    if scope == "project":
        return machine.project / ".mcp.json"
    from toolway.config.scopes import find_config_paths

    paths = find_config_paths(os.environ, machine.project)
    return paths.user if scope == "user" else paths.local


def _set(file: Path, block: dict[str, Any]) -> None:
    write(file, json.dumps({"mcpServers": {"u": URL}, "toolway": block}))


def by_pattern(file: Path, folder: Path) -> None:
    write(folder / "evil.yaml", flow())


def by_name(file: Path, folder: Path) -> None:
    write(folder / "evil.yml", flow())


def inline(file: Path, folder: Path) -> None:
    _set(file, {"workflows": ["flows/*.yaml", json.loads(flow(name="evil"))]})


def as_a_link(file: Path, folder: Path) -> None:
    write(folder.parent / "elsewhere", flow())
    (folder / "evil.yaml").symlink_to(folder.parent / "elsewhere")


def behind_a_link(file: Path, folder: Path) -> None:
    write(folder.parent / "target", flow())  # `linked.yaml` leads there


def as_a_child(file: Path, folder: Path) -> None:
    write(folder / "child.yml", flow())


def as_a_child_of_a_child(file: Path, folder: Path) -> None:
    write(folder / "deep.yml", flow())


def as_a_copy(file: Path, folder: Path) -> None:
    write(folder / "evil.yaml", flow())
    os.utime(folder / "evil.yaml", ns=(1, 1))


def by_an_edit(file: Path, folder: Path) -> None:
    write(folder / "ok.yaml", flow())


def by_an_edit_of_the_same_size_and_time(file: Path, folder: Path) -> None:
    before = (folder / "ok.yaml").stat()
    write(folder / "ok.yaml", (folder / "ok.yaml").read_text().replace("s.see", "s.pay"))
    os.utime(folder / "ok.yaml", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (folder / "ok.yaml").stat().st_size == before.st_size


WAYS: list[Callable[[Path, Path], None]] = [
    *(by_pattern, by_name, inline, as_a_link, behind_a_link, as_a_child, as_a_child_of_a_child, as_a_copy),
    *(by_an_edit, by_an_edit_of_the_same_size_and_time),
]


@pytest.mark.attack("A2-F2")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("scope", ["project", "user", "local"])
def test_workflow_without_trust_is_not_loaded(machine: Machine, scope: str, way: Callable[[Path, Path], None]) -> None:
    machine.write(USER_FILE, {"mcpServers": {"u": URL}})
    file = _config_file(machine, scope)
    folder = file.parent / "flows"
    child = {"steps": [{"workflow": "child.yml"}]}
    write(folder / "parent.yaml", json.dumps(child))
    write(folder / "child.yml", json.dumps({"steps": [{"tool": "s.see"}, {"workflow": "./deep.yml"}]}))
    write(folder / "deep.yml", flow("s.see"))
    write(folder / "ok.yaml", flow("s.see"))
    write(folder.parent / "target", flow("s.see"))
    (folder / "linked.yaml").symlink_to(folder.parent / "target")
    _set(file, {"workflows": ["flows/*.yaml", "flows/evil.yml"]})
    trust_all(machine)
    assert tools_used(machine) == {"s.see"}, "all that was there is approved"
    running = load_config(os.environ, machine.project, None, ApprovalGate.open(os.environ, "hold"))

    way(file, folder)
    assert "s.pay" not in tools_used(machine)  # of a gateway that starts now
    assert running.reload is not None
    reloaded = running.reload()
    for loaded in (running, reloaded):  # of one that runs
        assert all("s.pay" not in each.tool_names() for each in read_workflows(loaded.capture_workflows())[0])
    waiting = json.loads(machine.toolway("trust", "--json").stdout)
    shown = [each for entry in (*waiting["files"], *waiting["entries"]) for each in entry["workflows"]]
    assert any("s.pay" in each.get("tools", ()) for each in shown)
    trust_all(machine)
    assert "s.pay" in tools_used(machine)


@pytest.mark.attack("A2-F2")
def test_workflow_runs_as_it_was_compared(machine: Machine) -> None:
    """What was compared is what runs: the file is not opened again."""
    machine.write("project/.mcp.json", {"mcpServers": {}, "toolway": GLOB})
    write(machine.project / "flows" / "ok.yaml", json.dumps({"steps": [{"workflow": "child.yml"}]}))
    write(machine.project / "flows" / "child.yml", flow("s.see"))
    trust_all(machine)
    loaded = load_config(os.environ, machine.project, None, ApprovalGate.open(os.environ, "hold"))
    write(machine.project / "flows" / "child.yml", flow())
    definitions, _ = read_workflows(loaded.capture_workflows())
    assert {name for each in definitions for name in each.tool_names()} == {"s.see"}


@pytest.mark.attack("A2-F2")
def test_pipe_among_workflow_files_is_skipped(machine: Machine) -> None:
    machine.write("project/.mcp.json", {"mcpServers": {}, "toolway": GLOB})
    write(machine.project / "flows" / "ok.yaml", flow("s.see"))
    os.mkfifo(machine.project / "flows" / "pipe.yaml")
    trust_all(machine)
    assert tools_used(machine) == {"s.see"}


@pytest.mark.attack("A2-F2")
def test_workflow_is_gone_after_its_trust_was_revoked(machine: Machine) -> None:
    machine.write("project/.mcp.json", {"mcpServers": {}, "toolway": GLOB})
    write(machine.project / "flows" / "ok.yaml", flow("s.see"))
    trust_all(machine)
    assert machine.toolway("trust", "--revoke", "ok").exit_code == 0
    assert tools_used(machine) == set()
    trust_all(machine)
    assert machine.toolway("trust", "--revoke", ".mcp.json").exit_code == 0
    open_trust_store(os.environ).trust(machine.project / ".mcp.json", (machine.project / ".mcp.json").read_bytes())
    assert tools_used(machine) == set(), "the trust in the file is not the trust in its workflows"


# -- the key of a model's provider -------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.attack("A2-F2")
@pytest.mark.parametrize("listed", [False, True])
async def test_workflow_address_gets_no_provider_key_unless_listed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with FakeLLM(["Done."] * 5) as llm:
        agent = {"prompt": "Hi", "model": "openai-chat:gpt-4o", "base_url": llm.openai_url, "tools": []}
        body = {"schedule": {"every": "1s"}, "steps": [{"name": "ask", "agent": agent}]}
        write(machine.project / "flows" / "ask.yaml", json.dumps(body))
        urls = {"modelUrls": [llm.openai_url]} if listed else {}
        machine.write("project/.mcp.json", {"mcpServers": {}, "toolway": {**GLOB, **urls}})
        review = json.loads(machine.toolway("trust", "--json").stdout)["files"][0]
        assert [each["base_url"] for each in review["workflows"][0]["agents"]] == [llm.openai_url]
        assert [each["to"] for each in review["sends"]] == urls.get("modelUrls", [])
        trust_all(machine)
        async with serving(machine) as gateway:
            if listed:
                await until(lambda: bool(llm.requests), within=60)
                return
            url = re.search(r"serving at (\S+?)(?:/mcp)?\s", gateway.log)
            assert url is not None
            shown = ""
            for _ in range(100):
                words = ("workflow", "ls", "--gateway", url[1], "--json")
                shown = (await asyncio.to_thread(machine.toolway, *words)).stdout
                if '"failed"' in shown:
                    break
                await asyncio.sleep(0.3)
            assert "E-AGENT-ADDRESS" in shown
        assert llm.requests == []


@pytest.mark.anyio
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
