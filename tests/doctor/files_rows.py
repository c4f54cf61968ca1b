"""Files that are not read as they were meant."""

from __future__ import annotations

import json

from tests.doctor.lab import Lab, small
from tests.doctor.rows import row
from tests.doctor.web import mcp, serving

ENTRY = json.dumps(small())


@row("wrong root key")
async def wrong_root(lab: Lab) -> None:
    lab.servers(root="mcpServer", acme=small())
    check = await lab.finds('mcp.json: the servers stand under "mcpServer", and Toolway looks for "mcpServers"')
    lab.repair(check)
    await lab.is_well()


@row("another client's root key")
async def foreign_root(lab: Lab) -> None:
    path = lab.work / ".vscode" / "mcp.json"
    lab.write(f'{{\n  // "mcpServers": here\n  "mcpServers": {{"acme": {ENTRY}}}\n}}\n', path)
    check = await lab.finds('the servers stand under "mcpServers", and VS Code looks for "servers"', client="vscode")
    lab.repair(check)
    assert '// "mcpServers": here\n  "servers": {' in path.read_text()
    await lab.is_well("vscode")


@row("wrong type spelling")
async def wrong_type(lab: Lab) -> None:
    lab.servers(acme={**small(), "type": "studio"})
    check = await lab.finds("acme: 'studio' is not a type of server")
    assert "stdio" in check.fix + check.copy
    lab.take_over(check, "acme")
    await lab.is_well()


@row("BOM")
async def mark(lab: Lab) -> None:
    path = lab.home / ".cursor" / "mcp.json"
    lab.write(b"\xef\xbb\xbf" + json.dumps({"mcpServers": {"acme": small()}}).encode(), path)
    check = await lab.finds("mcp.json begins with a byte order mark, which Cursor cannot read", client="cursor")
    await lab.run(check.copy)
    await lab.is_well("cursor")


@row("BOM in our own file")
async def own_mark(lab: Lab) -> None:
    lab.write(b"\xef\xbb\xbf" + json.dumps({"mcpServers": {"acme": small()}}).encode())
    check = await lab.finds("mcp.json begins with a byte order mark, which other programs cannot read")
    lab.repair(check)
    await lab.is_well()


@row("UTF-16")
async def utf16(lab: Lab) -> None:
    lab.write(json.dumps({"mcpServers": {"acme": small()}}).encode("utf-16"))
    check = await lab.finds("mcp.json is UTF-16, and has to be UTF-8")
    lab.repair(check)
    await lab.is_well()


@row("JSONC")
async def comments(lab: Lab) -> None:
    path = lab.home / ".config" / "Claude" / "claude_desktop_config.json"
    lab.write(f'{{\n  "mcpServers": {{\n    // mine\n    "acme": {ENTRY}\n  }}\n}}\n', path)
    check = await lab.finds(
        "has a comment in line 3, and Claude Desktop reads plain JSON only", client="claude-desktop"
    )
    assert "// mine" in check.evidence
    lab.edit("    // mine\n", "", path)
    await lab.is_well("claude-desktop")


@row("a trailing comma")
async def comma(lab: Lab) -> None:
    path = lab.home / ".config" / "Claude" / "claude_desktop_config.json"
    lab.write(f'{{\n  "mcpServers": {{\n    "acme": {ENTRY},\n  }}\n}}\n', path)
    await lab.finds("has a trailing comma", "Claude Desktop reads plain JSON only", client="claude-desktop")
    lab.edit("},\n", "}\n", path)
    await lab.is_well("claude-desktop")


@row("no JSON at all")
async def syntax(lab: Lab) -> None:
    lab.write(f'{{\n  "mcpServers": {{\n    "acme": {ENTRY}\n    "other": {ENTRY}\n  }}\n}}\n')
    check = await lab.finds("mcp.json is not valid JSON: line 4")
    assert "missing comma" in check.fix
    lab.edit(f'    "other": {ENTRY}\n', "")
    await lab.is_well()


@row("duplicate entry")
async def twice(lab: Lab) -> None:
    lab.write(f'{{"mcpServers": {{\n"acme": {ENTRY},\n"acme": {ENTRY}\n}}}}')
    check = await lab.finds("acme: 'acme' stands twice")
    assert "lines 2 and 3" in check.evidence
    lab.edit(f'"acme": {ENTRY},\n', "")
    await lab.is_well()


@row("the same server under two names")
async def twins(lab: Lab) -> None:
    lab.servers(acme=small(), other=small())
    check = await lab.finds("other: the same server stands here twice, also as acme")
    assert "remove one" in check.fix
    lab.servers(acme=small())
    await lab.is_well()


@row("two servers with one name")
async def one_name(lab: Lab) -> None:
    lab.write(json.dumps({"mcpServers": {"my-server": small(), "My Server": small("x")}}, indent=1))
    check = await lab.finds("My Server: 'My Server' would be called 'my-server', and that name is taken")
    assert "rename one" in check.fix
    lab.edit("My Server", "my-other-server")
    await lab.is_well()


@row("one name in two scopes")
async def two_scopes(lab: Lab) -> None:
    from toolway.config.scopes import find

    lab.servers(acme=small())
    local = lab.servers(find(lab.environ, lab.work).local, acme=small("x"))
    check = await lab.finds("acme: this entry is not used: another acme goes before it")
    assert str(local) in check.evidence
    local.unlink()
    await lab.is_well()


@row("a project's file that nobody approved")
async def not_approved(lab: Lab) -> None:
    path = lab.servers(lab.work / ".mcp.json", acme=small())
    check = await lab.finds(".mcp.json is not used until you approve it")
    assert check.copy == "toolway approve"
    from toolway.config.approvals import open_approvals

    open_approvals(lab.environ).approve(path, path.read_bytes())
    await lab.is_well()


@row("a secret in plain text")
async def plain_secret(lab: Lab) -> None:
    lab.servers(acme={**small(), "env": {"ACME_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ012345"}})
    check = await lab.finds("acme: env.ACME_TOKEN is a secret in plain text")
    assert check.copy == "toolway secrets set acme.ACME_TOKEN"
    lab.edit("ghp_0123456789abcdefghijABCDEFGHIJ012345", "${ACME_TOKEN}")
    lab.environ["ACME_TOKEN"] = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
    await lab.is_well()


@row("a secret that the store does not have")
async def no_secret(lab: Lab) -> None:
    lab.servers(acme={**small(), "env": {"ACME_TOKEN": "${file:~/acme.token}"}})
    check = await lab.finds("acme: the secret ${file:~/acme.token} cannot be had")
    assert "No such file" in check.evidence
    lab.write("tok-1234567890\n", lab.home / "acme.token").chmod(0o600)
    await lab.is_well()


@row("a type that another client spells so")
async def foreign_type(lab: Lab) -> None:
    async with serving(mcp) as port:
        entry = {"type": "streamable-http", "url": f"http://127.0.0.1:{port}/mcp"}
        path = lab.servers(lab.home / ".claude.json", acme=entry)
        check = await lab.finds('acme: Claude Code does not know the type "streamable-http"', client="claude-code")
        assert "stdio, http, sse, ws" in check.evidence
        lab.take_over(check, "acme", path)
        await lab.is_well("claude-code")


@row("an address without a type, in Claude Code")
async def no_type(lab: Lab) -> None:
    async with serving(mcp) as port:
        path = lab.servers(lab.home / ".claude.json", acme={"url": f"http://127.0.0.1:{port}/mcp"})
        check = await lab.finds("acme: Claude Code takes an entry without a type for a command", client="claude-code")
        lab.take_over(check, "acme", path)
        await lab.is_well("claude-code")


@row("a server of Codex that is not there")
async def codex(lab: Lab) -> None:
    path = lab.write('[mcp_servers.acme]\ncommand = "acme-server"\n', lab.home / ".codex" / "config.toml")
    await lab.finds("acme: acme-server is not installed, or not on PATH", client="codex")
    lab.edit('"acme-server"', f'"{small()["command"]}"\nargs = {json.dumps(small()["args"])}', path)
    await lab.is_well("codex")


@row("a variable that a client does not fill in")
async def unknown_variable(lab: Lab) -> None:
    path = lab.servers(
        lab.home / ".claude.json", acme={**small(), "env": {"ACME_ROOT": "${env:ACME}"}, "type": "stdio"}
    )
    lab.environ["ACME"] = "/srv"
    check = await lab.finds("acme: env.ACME_ROOT looks as if it held a variable", client="claude-code")
    assert "does not fill it in" in check.evidence
    lab.edit('"${env:ACME}"', '"${ACME}"', path)
    await lab.is_well("claude-code")
