"""`toolway login` and `toolway logout`, with an authorization server and a browser that is a process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.auth.oauth_lab import Guarded, Issuer
from toolway import Hub, ToolwayError
from toolway.auth.encrypted_token_store import default_token_store
from toolway.cli.commands.login import run_login
from toolway.cli.options import TargetOptions
from toolway.cli.output import Output
from toolway.gateway.gateway import Gateway
from toolway.gateway.mcp.context import NoHubCallbacks
from toolway.gateway.principals import FileApiKeyStore
from toolway.hub.core import HubCore

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
BROWSER = ROOT / "tests" / "auth" / "browser.py"


class Shell:
    """Runs `toolway` as a user would."""

    def __init__(self, folder: Path, servers: dict[str, object]) -> None:
        self.notes = folder / "browser.txt"
        self.config = folder / "mcp.json"
        self.config.write_text(json.dumps({"mcpServers": servers}))
        browser = f"{sys.executable} {BROWSER} {self.notes} %s"
        self._env = {**os.environ, "BROWSER": browser, "TOOLWAY_CONFIG": str(self.config), "NO_COLOR": "1"}

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "toolway.cli", *words]
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=self._env)

    async def run(self, *words: str, typed: str = "") -> tuple[int, str, str]:
        process = await self.start(*words)
        async with asyncio.timeout(60):
            out, err = await process.communicate(typed.encode())
        return process.returncode or 0, out.decode(), err.decode()

    def visits(self) -> list[list[object]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()] if self.notes.exists() else []


def _shell(folder: Path, guarded: Guarded) -> Shell:
    return Shell(folder, {"guarded": {"url": guarded.url}})


async def test_login_opens_browser_and_later_commands_use_token(tmp_path: Path) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        shell = _shell(tmp_path, guarded)
        code, _, err = await shell.run("call", "guarded.echo")
        assert code != 0 and "toolway login guarded" in err and "E-AUTH-LOGIN" in err
        code, out, err = await shell.run("login", "guarded")
        assert (code, out) == (0, ""), err
        assert re.search(r"logged in to guarded: \d+ tools", err)
        [[address], [status, page]] = shell.visits()
        assert str(address).startswith(issuer.issuer) and status == 200 and "logged in" in str(page)
        code, out, err = await shell.run("call", "guarded.echo", "text=hello")
        assert code == 0, err
        assert issuer.made["login"] == 0 and issuer.made["authorization_code"] == 1


async def test_login_without_browser_accepts_pasted_redirect_url(tmp_path: Path) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        shell = _shell(tmp_path, guarded)
        process = await shell.start("login", "guarded", "--no-browser", "--json")
        assert process.stdin is not None and process.stderr is not None
        async with asyncio.timeout(60):
            while not (line := (await process.stderr.readline()).decode()).startswith("http"):
                assert line
            ended_at = await issuer.login("", line.strip())
            process.stdin.write(f"http://127.0.0.1/callback?code=x&state=another\n{ended_at}\n".encode())
            out, err = await process.communicate()
        assert process.returncode == 0 and b"does not belong to this login" in err, err
        told = json.loads(out)
        assert (told["server"], told["logged_in"]) == ("guarded", True) and told["tools"] > 0
        assert shell.visits() == []
        assert not [token for token in (*issuer.valid, *issuer.refresh) if token.encode() in out + err]


async def test_logout_deletes_token_and_keeps_tools_listed(tmp_path: Path) -> None:
    async with Issuer() as issuer, Guarded(issuer) as guarded:
        issuer.metadata = {"revocation_endpoint": f"{issuer.issuer}/revoke"}
        async with Hub({"guarded": guarded.url}) as hub:
            await hub.login("guarded", issuer.login)
            before = {tool.qualified_name for tool in await hub.list_tools()}
        shell = _shell(tmp_path, guarded)
        code, _, err = await shell.run("logout", "guarded")
        assert code == 0 and "logged out of guarded" in err
        [told] = [line for line in issuer.seen if " /revoke " in line]
        assert [token for token in issuer.refresh if token in told]
        assert not list((tmp_path / "data" / "toolway" / "tokens").glob("*.token"))
        code, out, _ = await shell.run("tools", "--refresh", "--json")
        assert {tool["name"] for tool in json.loads(out)["tools"]} == before and before


async def test_gateway_key_stores_login_at_gateway(tmp_path: Path) -> None:
    keyring = FileApiKeyStore(tmp_path / "keys.json", "tw_owner-of-this-gateway")
    key, _ = keyring.create_key_sync("one", None, False, 0.0)
    async with (
        Issuer() as issuer,
        Guarded(issuer) as guarded,
        HubCore({"guarded": guarded.url}, callbacks=NoHubCallbacks()) as hub,
    ):
        gateway = Gateway(hub, b"k" * 32, keyring)
        port = await gateway.listen("127.0.0.1", 0)
        shell = Shell(tmp_path, {})
        there = ("--gateway", f"http://127.0.0.1:{port}", "--token", key)
        code, _, err = await shell.run("login", "guarded", *there)
        assert code == 0 and "the gateway stores the token for your key" in err, err
        code, _, err = await shell.run("login", "nobody", *there)
        assert code != 0 and "unknown server" in err
        files = list((tmp_path / "data" / "toolway" / "tokens").glob("*.token"))
        assert [file.name for file in files] == [_name(f"guarded {guarded.url}", f"key:{keyring.list_keys()[0].id}")]
        hurry = asyncio.Event()
        hurry.set()
        await gateway.drain(hurry, 0, 0)


def _name(upstream: str, principal: str) -> str:
    store = default_token_store(os.environ)
    assert store is not None
    return store.file_path(upstream, principal).name


@pytest.mark.parametrize(
    ("name", "said"),
    {
        "own": "has a static token",
        "command": "not a remote server",
        "cc": "the hub gets a token",
        "far": "cannot listen for the login redirect at",
        "gone": "cannot be reached",
        "other": "unknown server",
    }.items(),
)
async def test_login_to_unsupported_server_is_explained(tmp_path: Path, name: str, said: str) -> None:
    entry = {"url": "http://127.0.0.1:9/mcp"}
    secret = {"grant": "client_credentials", "clientId": "c", "clientSecret": "s", "issuer": "http://127.0.0.1:9"}
    secret["redirectUri"] = "http://127.0.0.1:0/callback"  # any port: the usual one may be taken on a busy machine
    servers: dict[str, object] = {
        "own": {**entry, "headers": {"Authorization": "Bearer x"}},
        "command": {"command": "true"},
        "cc": {**entry, "auth": {"type": "oauth", **secret}},
        "far": {**entry, "auth": {"type": "oauth", "redirectUri": "https://elsewhere.example/callback"}},
        "gone": entry,
    }
    shell = Shell(tmp_path, servers)
    with pytest.raises(ToolwayError) as caught:
        await run_login(Output(), TargetOptions(config=shell.config), name, with_browser=True)
    assert said in str(caught.value)
    assert shell.visits() == []
