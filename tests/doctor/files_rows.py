"""Files that are not read as they were meant."""

from __future__ import annotations

import json

from tests.doctor.doctor_lab import Lab, small
from tests.doctor.http_servers import mcp, serving
from tests.doctor.rows import row

ENTRY = json.dumps(small())


@row("wrong root key")
async def wrong_root(lab: Lab) -> None:
    lab.servers(root="mcpServer", acme=small())
    check = await lab.finds('mcp.json: the servers are under "mcpServer", but Toolway reads "mcpServers"')
    lab.repair(check)
    await lab.is_well()


@row("another client's root key")
async def foreign_root(lab: Lab) -> None:
    path = lab.work / ".vscode" / "mcp.json"
    lab.write(f'{{\n  // "mcpServers": here\n  "mcpServers": {{"acme": {ENTRY}}}\n}}\n', path)
    check = await lab.finds('the servers are under "mcpServers", but VS Code reads "servers"', client="vscode")
    lab.repair(check)
    assert '// "mcpServers": here\n  "servers": {' in path.read_text()
    await lab.is_well("vscode")


@row("wrong type spelling")
async def wrong_type(lab: Lab) -> None:
    lab.servers(acme={**small(), "type": "studio"})
    check = await lab.finds("acme: unknown server type 'studio'")
    assert "stdio" in check.hint + check.copy
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
    check = await lab.finds("mcp.json is encoded as UTF-16 instead of UTF-8")
    lab.repair(check)
    await lab.is_well()


@row("JSONC")
async def comments(lab: Lab) -> None:
    path = lab.home / ".config" / "Claude" / "claude_desktop_config.json"
    lab.write(f'{{\n  "mcpServers": {{\n    // mine\n    "acme": {ENTRY}\n  }}\n}}\n', path)
    check = await lab.finds(
        "has a comment in line 3, and Claude Desktop reads plain JSON only", client="claude-desktop"
    )
    assert "// mine" in check.detail
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
    assert "missing comma" in check.hint
    lab.edit(f'    "other": {ENTRY}\n', "")
    await lab.is_well()


@row("duplicate entry")
async def twice(lab: Lab) -> None:
    lab.write(f'{{"mcpServers": {{\n"acme": {ENTRY},\n"acme": {ENTRY}\n}}}}')
    check = await lab.finds("acme: duplicate key 'acme'")
    assert "lines 2 and 3" in check.detail
    lab.edit(f'"acme": {ENTRY},\n', "")
    await lab.is_well()


@row("the same server under two names")
async def twins(lab: Lab) -> None:
    lab.servers(acme=small(), other=small())
    check = await lab.finds("other: duplicate entry: acme is the same server")
    assert "remove one" in check.hint
    lab.servers(acme=small())
    await lab.is_well()


@row("two servers with one name")
async def one_name(lab: Lab) -> None:
    lab.write(json.dumps({"mcpServers": {"my-server": small(), "My Server": small("x")}}, indent=1))
    check = await lab.finds("My Server: 'My Server' would become 'my-server', which is taken")
    assert "rename one" in check.hint
    lab.edit("My Server", "my-other-server")
    await lab.is_well()


@row("one name in two scopes")
async def two_scopes(lab: Lab) -> None:
    from toolway.config.scopes import find_config_paths

    lab.servers(acme=small())
    local = lab.servers(find_config_paths(lab.environ, lab.work).local, acme=small("x"))
    check = await lab.finds("acme: overridden by another entry named acme")
    assert str(local) in check.detail
    local.unlink()
    await lab.is_well()


@row("a project's file that nobody trusts")
async def not_trusted(lab: Lab) -> None:
    path = lab.servers(lab.work / ".mcp.json", acme=small())
    check = await lab.finds(".mcp.json is not used until you trust it")
    assert check.copy == "toolway trust"
    from toolway.config.scopes import open_trust_store

    open_trust_store(lab.environ).trust(path, path.read_bytes())
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
    check = await lab.finds("acme: secret ${file:~/acme.token} is not available")
    assert "No such file" in check.detail
    lab.write("tok-1234567890\n", lab.home / "acme.token").chmod(0o600)
    await lab.is_well()


@row("a type that another client spells so")
async def foreign_type(lab: Lab) -> None:
    async with serving(mcp) as port:
        entry = {"type": "streamable-http", "url": f"http://127.0.0.1:{port}/mcp"}
        path = lab.servers(lab.home / ".claude.json", acme=entry)
        check = await lab.finds('acme: unknown type "streamable-http" for Claude Code', client="claude-code")
        assert "stdio, http, sse, ws" in check.detail
        lab.take_over(check, "acme", path)
        await lab.is_well("claude-code")


@row("an address without a type, in Claude Code")
async def no_type(lab: Lab) -> None:
    async with serving(mcp) as port:
        path = lab.servers(lab.home / ".claude.json", acme={"url": f"http://127.0.0.1:{port}/mcp"})
        check = await lab.finds("acme: Claude Code treats an entry without a type as a command", client="claude-code")
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
    check = await lab.finds("acme: env.ACME_ROOT appears to contain a variable", client="claude-code")
    assert "does not expand it" in check.detail
    lab.edit('"${env:ACME}"', '"${ACME}"', path)
    await lab.is_well("claude-code")
