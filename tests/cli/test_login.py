"""`toolway login` and `toolway logout`, with a real authorization server and a browser that is a process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.security.authorization_server import RealIssuer, real_issuer
from toolway import Hub

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).resolve().parents[2]
BROWSER = ROOT / "tests" / "security" / "browser.py"


class Shell:
    """Runs `toolway` as a person would."""

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


def _shell(folder: Path, lab: RealIssuer, **entry: object) -> Shell:
    return Shell(folder, {"guarded": {"url": lab.url, **entry}})


async def test_login_opens_a_browser_and_every_later_command_has_the_token(tmp_path: Path) -> None:
    async with real_issuer() as lab:
        shell = _shell(tmp_path, lab)
        code, _, err = await shell.run("call", "guarded.echo")
        assert code != 0 and "toolway login guarded" in err and "E-AUTH-LOGIN" in err
        code, out, err = await shell.run("login", "guarded")
        assert (code, out) == (0, ""), err
        assert re.search(r"logged in to guarded: \d+ tools", err)
        [[address], [status, page]] = shell.visits()
        assert str(address).startswith((await lab.tell()).issuer) and status == 200 and "logged in" in str(page)
        code, out, err = await shell.run("call", "guarded.echo", "text=hello")
        assert code == 0, err
        assert (await lab.tell()).logins == 1


async def test_login_in_json_says_what_came_of_it_and_no_token(tmp_path: Path) -> None:
    async with real_issuer() as lab:
        shell = _shell(tmp_path, lab)
        code, out, err = await shell.run("login", "guarded", "--json")
        told = json.loads(out)
        assert (code, told["server"], told["logged_in"]) == (0, "guarded", True) and told["tools"] > 0
        assert not re.search(r"(access|refresh)-[0-9a-f]{32}", out + err)


async def test_without_a_browser_the_address_where_it_ended_is_pasted(tmp_path: Path) -> None:
    async with real_issuer() as lab:
        shell = _shell(tmp_path, lab)
        process = await shell.start("login", "guarded", "--no-browser")
        assert process.stdin is not None and process.stderr is not None
        async with asyncio.timeout(60):
            while not (line := (await process.stderr.readline()).decode()).startswith("http"):
                assert line
            ended_at = await lab.login("", line.strip())
            process.stdin.write(f"http://127.0.0.1/callback?code=x&state=another\n{ended_at}\n".encode())
            _, err = await process.communicate()
        assert process.returncode == 0, err
        assert b"not where that login ended" in err and b"logged in to guarded" in err
        assert shell.visits() == []


async def test_logout_forgets_the_login_and_tells_the_issuer(tmp_path: Path) -> None:
    async with real_issuer() as lab:
        shell = _shell(tmp_path, lab)
        await shell.run("login", "guarded")
        code, _, err = await shell.run("logout", "guarded")
        assert code == 0 and "logged out of guarded" in err
        assert (await lab.tell()).revoked == 1
        assert not list((tmp_path / "data" / "toolway" / "tokens").glob("*.token"))
        code, _, err = await shell.run("logout", "guarded")
        assert code == 0 and "there was no login" in err
        code, _, err = await shell.run("call", "guarded.echo")
        assert "toolway login guarded" in err


async def test_tools_of_a_server_whose_login_has_ended_are_still_listed(tmp_path: Path) -> None:
    async with real_issuer() as lab:
        shell = _shell(tmp_path, lab)
        await shell.run("login", "guarded")
        code, out, _ = await shell.run("tools", "--refresh", "--json")
        before = {tool["name"] for tool in json.loads(out)["tools"]}
        await lab.tell("end")
        code, out, err = await shell.run("tools", "--refresh", "--json")
        assert {tool["name"] for tool in json.loads(out)["tools"]} == before and before
        code, out, err = await shell.run("call", "guarded.echo")
        assert code != 0 and "toolway login guarded" in err


async def test_what_cannot_be_logged_in_to_says_so(tmp_path: Path) -> None:
    entry = {"url": "http://127.0.0.1:9/mcp"}
    servers: dict[str, object] = {
        "own": {**entry, "headers": {"Authorization": "Bearer x"}},
        "command": {"command": "true"},
        "cc": {
            **entry,
            "auth": {
                "type": "oauth",
                "grant": "client_credentials",
                "clientId": "c",
                "clientSecret": "s",
                "issuer": "http://127.0.0.1:9",
            },
        },
        "far": {**entry, "auth": {"type": "oauth", "redirectUri": "https://elsewhere.example/callback"}},
        "gone": entry,
    }
    shell = Shell(tmp_path, servers)
    for name, said in {
        "own": "has a token of its own",
        "command": "no remote server",
        "cc": "the hub does it",
        "far": "nobody can come back to",
        "gone": "cannot be reached",
        "other": "no server",
    }.items():
        code, _, err = await shell.run("login", name)
        assert code != 0 and said in err, err
    assert shell.visits() == []


async def test_a_hub_that_runs_has_the_token_after_a_login_on_the_command_line(tmp_path: Path) -> None:
    async with real_issuer() as lab, Hub({"guarded": lab.url}) as hub:
        await hub.wait_settled()
        assert "wants a login" in hub.status()["guarded"].why
        await _shell(tmp_path, lab).run("login", "guarded")
        async with asyncio.timeout(10):
            while hub.status()["guarded"].state != "ready":
                await asyncio.sleep(0.05)
        assert not (await hub.call_tool("guarded.echo")).is_error
