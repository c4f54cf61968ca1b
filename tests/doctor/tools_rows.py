"""Tools that models or their providers do not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.doctor.doctor_lab import PYTHON, Lab, small
from tests.doctor.rows import row

BARE = Path(__file__).parent.parent / "hub" / "bare_server.py"


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "description": "A tool.", "inputSchema": {"type": "object", "properties": properties}}


@row("bad schema")
async def bad_schema(lab: Lab) -> None:
    path = lab.write(json.dumps([tool("search", tags={"type": "array"})]), lab.work / "tools.json")
    lab.servers(acme=small(str(path)))
    check = await lab.finds(
        'acme: OpenAI and Gemini reject the tool search: an array without "items" at properties.tags'
    )
    assert '"items": {"type": "string"}' in check.hint
    lab.edit('"type": "array"', '"type": "array", "items": {"type": "string"}', path)
    await lab.is_well()


@row("a schema that is none")
async def no_schema(lab: Lab) -> None:
    path = lab.write(json.dumps([tool("search", words={"type": "text"})]), lab.work / "tools.json")
    lab.servers(acme=small(str(path)))
    await lab.finds("acme: every model provider rejects the tool search: inputSchema is not valid JSON Schema")
    lab.edit('"text"', '"string"', path)
    await lab.is_well()


@row("cases at the top of a schema")
async def top_cases(lab: Lab) -> None:
    wrong = tool("search", a={"type": "string"})
    wrong["inputSchema"]["anyOf"] = [{"required": ["a"]}]
    path = lab.write(json.dumps([wrong]), lab.work / "tools.json")
    lab.servers(acme=small(str(path)))
    check = await lab.finds('acme: OpenAI and Anthropic reject the tool search: "anyOf" at the top level of the schema')
    assert "optional properties" in check.hint
    lab.write(json.dumps([tool("search", a={"type": "string"})]), path)
    await lab.is_well()


@row("name over 64")
async def long_name(lab: Lab) -> None:
    path = lab.write(json.dumps([tool("search_the_whole_archive_of_documents")]), lab.work / "tools.json")
    lab.servers(acme_documents_of_the_whole_company=small(str(path)))
    check = await lab.finds("has 74 characters with the server's name, but models accept 64")
    assert "at most 25 characters" in check.hint
    lab.servers(acme_documents=small(str(path)))
    await lab.is_well()


@row("tools that cost too much")
async def expensive_definitions(lab: Lab) -> None:
    many = [{**tool(f"tool_{n}", a={"type": "string"}), "description": "A long story. " * 60} for n in range(100)]
    path = lab.write(json.dumps(many), lab.work / "tools.json")
    lab.servers(acme=small(str(path)))
    check = await lab.finds("acme: the tools cost about", "(OpenAI)", "(Anthropic)", "(Gemini) in every request")
    assert "toolset" in check.hint
    lab.write(json.dumps(many[:5]), path)
    await lab.is_well()


@row("no handshake")
async def no_handshake(lab: Lab) -> None:
    lab.servers(mail={"command": PYTHON, "args": [str(BARE)]})
    seen = await lab.doctor()
    assert seen.report.state == "ok", "\n".join(seen.lines)
    check = next(check for subject in seen.report.subjects for check in subject.checks if check.name == "handshake")
    assert "era bare" in check.message and "MCP SDK" in check.hint
    lab.take_over(check, "mail")
    again = await lab.doctor()
    assert not any('"era"' in line for line in again.lines), "\n".join(again.lines)
    await lab.is_well()


@row("a deny list with a misspelt name")
async def misspelt_deny_list(lab: Lab) -> None:
    path = lab.write(json.dumps([tool("search"), tool("write_file")]), lab.work / "tools.json")
    lab.servers(acme={**small(str(path)), "tools": {"deny": ["wirte_file"]}})
    check = await lab.finds("acme: tools.deny has 'wirte_file', which matches no tool")
    assert "did you mean write_file?" in check.hint
    lab.edit("wirte_file", "write_file")
    await lab.is_well()
